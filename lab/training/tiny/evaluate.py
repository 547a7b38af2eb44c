"""Measure an exported `gemma4-tiny` on held-out problems, with and without speculation.

python -m eagle_aot.lab.training.tiny.evaluate gemma4-tiny-xnnpack
"""

import itertools
import sys
from pathlib import Path
from typing import Annotated, Any

import click

from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.spec import BenchSpec, table_of
from eagle_aot.lab.options import parse_chain_lens
from eagle_aot.lab.training.tiny.stories import Story, final_answer, stories
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.adaptive.chain_length import ChainLen
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.frontend.result import Result

SEED = 20261121  # any: whether a question is held out depends on its text
MAX_NEW_TOKENS = 256


class EvaluateSpec(BenchSpec, kw_only=True, frozen=True):
    """How many problems, and with which chains."""

    problems: Annotated[int, Option("Held-out problems.", least=1)] = 100
    chain_lens: Annotated[
        tuple[ChainLen, ...], Option("Drafts per round.", metavar="K,...", parse=parse_chain_lens)
    ] = (1, 2, 3, 4, 5, 6, 7)


@click.argument("artifact", type=click.Path(path_type=Path))
@spec_command(EvaluateSpec)
def main(spec: EvaluateSpec) -> None:
    """Count right answers of ARTIFACT, and tokens per round of every chain length.

    Exits with 1 where an output differs from plain decoding's.
    """
    problems = list(itertools.islice(stories(SEED, "test"), spec.problems))
    runner = spec.load()
    plain = answer(runner, problems, None)
    rows = {"plain": plain}
    rows |= {f"K = {k}": answer(runner, problems, k) for k in spec.chain_lens}
    table = table_of("", "correct", "identical", "target forwards", "tau",
                     "acceptance by position", "s")  # fmt: skip
    results: dict[str, dict[str, Any]] = {}
    for name, group in rows.items():
        stats = Stats.total(result.stats for result in group)
        pairs = zip(group, problems, strict=True)
        correct = sum(final_answer(result.text or "") == story.final for result, story in pairs)
        identical = sum(a.token_ids == b.token_ids for a, b in zip(group, plain, strict=True))
        table.add_row(
            name,
            f"{correct}/{len(problems)}",
            f"{identical}/{len(problems)}",
            str(stats.target_forwards),
            f"{stats.tau:.2f}",
            " ".join(f"{share:.3f}" for share in stats.acceptance_by_position),
            f"{stats.decode_seconds:.1f}",
        )
        results[name] = {"correct": correct, "identical": identical, "stats": stats.to_json()}
    spec.show(f"{len(problems)} held-out problems, {spec.artifact.name}", results, table)
    if any(result["identical"] < len(problems) for result in results.values()):
        sys.exit(1)


def answer(runner: Runner, problems: list[Story], chain_len: ChainLen | None) -> list[Result]:
    """Answer all problems, plainly for None."""
    return [
        runner.generate(story.question, MAX_NEW_TOKENS, chain_len, chain_len is not None)
        for story in problems
    ]


if __name__ == "__main__":
    main()
