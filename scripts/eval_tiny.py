"""Measure an exported `gemma4-tiny` on held-out problems, with and without speculation.

\b
    eagle-export --target-model gemma4-tiny --output-dir gemma4-tiny-xnnpack
    python scripts/eval_tiny.py gemma4-tiny-xnnpack
    python scripts/eval_tiny.py gemma4-tiny-xnnpack --write-prompts problems.jsonl

Prints one table: correct answers, identical outputs, target forwards, tau and acceptance by
position for every chain length. Exits with 1 when an output differs from plain decoding.
"""

import itertools
import json
import sys
from importlib.metadata import version
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from eagle_aot.common.errors import EagleError
from eagle_aot.lab.options import no_cuda_graph_option, numbers
from eagle_aot.lab.training.tiny.stories import Story, final_answer, stories
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.frontend.result import Result

SEED = 20261121  # any; the split is by the question's text
MAX_NEW_TOKENS = 256


@click.command(help=__doc__, context_settings={"show_default": True})
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--problems", "count", type=click.IntRange(min=1), default=100)
@click.option("--chain-lens", default="1,2,3,4,5,6,7", callback=numbers, help="Lengths to measure.")
@no_cuda_graph_option
@click.option("--write-prompts", type=click.Path(path_type=Path), help="Write the problems, stop.")
def main(
    artifact: Path,
    count: int,
    chain_lens: list[int],
    no_cuda_graph: bool,
    write_prompts: Path | None,
) -> None:
    problems = list(itertools.islice(stories(SEED, "test"), count))
    if write_prompts is not None:
        lines = (json.dumps({"prompt": story.question}) for story in problems)
        write_prompts.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    try:
        runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph)
        plain = answer_all(runner, problems, None)
        rows = {"plain": plain}
        for chain_len in chain_lens:
            rows[f"K = {chain_len}"] = answer_all(runner, problems, chain_len)
    except EagleError as error:
        raise click.ClickException(str(error)) from error
    console = Console(width=110)
    executor = runner.executor
    console.print(f"{count} held-out problems, {executor.name} on {executor.device}, {versions()}")
    console.print(table(rows, problems))
    if any(differing(results, plain) for results in rows.values()):
        sys.exit(1)


def answer_all(runner: Runner, problems: list[Story], chain_len: int | None) -> list[Result]:
    """One result per problem; None decodes plainly."""
    return [
        runner.generate(story.question, MAX_NEW_TOKENS, chain_len, chain_len is not None)
        for story in problems
    ]


def table(rows: dict[str, list[Result]], problems: list[Story]) -> Table:
    """One line per way of decoding."""
    shown = Table()
    headers = ("", "correct", "identical", "target forwards", "tau", "acceptance by position", "s")
    for header in headers:
        shown.add_column(header, justify="left" if header in headers[:6:5] else "right")
    plain = rows["plain"]
    for name, results in rows.items():
        stats = Stats.total(result.stats for result in results)
        shown.add_row(
            name,
            f"{correct(results, problems)}/{len(problems)}",
            f"{len(problems) - differing(results, plain)}/{len(problems)}",
            str(stats.target_forwards),
            f"{stats.tau:.2f}",
            " ".join(f"{a:.3f}" for a in stats.acceptance_by_position),
            f"{stats.decode_seconds:.1f}",
        )
    return shown


def correct(results: list[Result], problems: list[Story]) -> int:
    """How many results end in the right number."""
    pairs = zip(results, problems, strict=True)
    return sum(final_answer(result.text or "") == story.final for result, story in pairs)


def differing(results: list[Result], plain: list[Result]) -> int:
    """How many results are not, token for token, the plain ones."""
    return sum(r.token_ids != p.token_ids for r, p in zip(results, plain, strict=True))


def versions() -> str:
    """What the figures were measured with."""
    return ", ".join(f"{p} {version(p)}" for p in ("eagle-aot", "torch", "executorch"))


if __name__ == "__main__":
    main()
