"""Does `--chain-len auto` choose well? Against plain decoding and every fixed chain length.

\b
    eagle-export --target-model gemma4-tiny --output-dir gemma4-tiny-xnnpack
    python scripts/bench_chain_len.py gemma4-tiny-xnnpack

Three sets of prompts for the shipped pair: held-out stories, random token ids, and both in turn.
Of each prompt all chain lengths decode the same number of tokens, one after the other in a rotating
order, so that a drift of the machine meets all of them. Exits with 1 when an output differs.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH, ChainLen
from eagle_aot.runtime_runner.result import Result
from eagle_aot.runtime_runner.runner import LONGEST_CHOSEN
from eagle_aot.runtime_runner.stats import Stats
from shared.header import header, title_lines
from tiny_pair.stories import stories

SEED = 20261121
SHORTEST, LONGEST = 8, 120  # tokens of a random prompt
REPORT_WIDTH = 110
LIMIT = 0.97  # of plain decoding, and of the best fixed length, that auto is to reach


@dataclass(frozen=True, kw_only=True)
class Line:
    """One set of prompts with one chain length, 0 for plain decoding."""

    prompts: str
    chain_len: ChainLen
    tokens: int
    seconds: float
    of_plain: float
    of_best: float
    rounds_by_chain_len: list[int]


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompts", "count", type=click.IntRange(min=2), default=24, show_default=True,
              help="Prompts per set.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=128, show_default=True)
@click.option("--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself.")
@click.option("--commit", help="Default: what git says of the package.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    artifact: Path,
    count: int,
    max_new_tokens: int,
    no_cuda_graph: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Compare --chain-len auto with every fixed length of ARTIFACT, on easy and hard prompts."""
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph)
    sets = prompt_sets(runner, count)
    lengths: list[ChainLen] = [*range(LONGEST_CHOSEN + 1), AUTO_LENGTH]
    lines: list[Line] = []
    same = True
    with Bar(console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("decoding", total=len(sets) * count)
        for name, prompts in sets.items():
            results: dict[ChainLen, list[Result]] = {length: [] for length in lengths}
            for number, prompt in enumerate(prompts):
                for length in rotated(lengths, number):
                    results[length].append(decode(runner, prompt, length, max_new_tokens))
                bar.advance(shown)
            same &= all(tokens(found) == tokens(results[0]) for found in results.values())
            lines += report(name, results)
    show(artifact, lines, same, commit, as_json)
    sys.exit(0 if same else 1)


def prompt_sets(runner: Runner, count: int) -> dict[str, list[Prompt]]:
    """By name, `count` prompts each, the same in every run."""
    rng = random.Random(SEED)
    easy: list[Prompt] = [
        story.question for story in itertools.islice(stories(SEED, "test"), count)
    ]
    noise: list[Prompt] = [
        [rng.randrange(runner.constants.vocab_size) for _ in range(rng.randint(SHORTEST, LONGEST))]
        for _ in range(count)
    ]
    mixed = itertools.chain(*zip(easy, noise, strict=True))
    return {"stories": easy, "random tokens": noise, "in turn": list(mixed)[:count]}


def rotated(lengths: list[ChainLen], by: int) -> list[ChainLen]:
    """The same ones, starting with another."""
    by %= len(lengths)
    return lengths[by:] + lengths[:by]


def decode(runner: Runner, prompt: Prompt, length: ChainLen, max_new_tokens: int) -> Result:
    """0 decodes plainly."""
    if length == 0:
        return runner.generate(prompt, max_new_tokens, speculate=False)
    return runner.generate(prompt, max_new_tokens, length)


def tokens(results: list[Result]) -> list[list[int]]:
    """All output."""
    return [result.token_ids for result in results]


def report(name: str, results: dict[ChainLen, list[Result]]) -> Iterator[Line]:
    """A line for each chain length; ratios are of tokens per second."""
    totals = {k: Stats.total(result.stats for result in found) for k, found in results.items()}
    plain = totals[0].decode_seconds
    best = min(stats.decode_seconds for length, stats in totals.items() if length != AUTO_LENGTH)
    for length, stats in totals.items():
        yield Line(
            prompts=name,
            chain_len=length,
            tokens=stats.emitted,
            seconds=stats.decode_seconds,
            of_plain=plain / stats.decode_seconds,
            of_best=best / stats.decode_seconds,
            rounds_by_chain_len=stats.rounds_by_chain_len,
        )


def show(artifact: Path, lines: list[Line], same: bool, commit: str | None, as_json: bool) -> None:
    """One JSON object, or a table."""
    head = header(f"chain lengths of {artifact.name}", commit)
    if as_json:
        found = [asdict(line) for line in lines]
        click.echo(json.dumps({**asdict(head), "identical": same, "lines": found}))
        return
    console = Console(width=REPORT_WIDTH, highlight=False)
    console.print(*title_lines(head), "", sep="\n")
    table = Table("prompts", "K", "tokens/s", "of plain", "of best K", "rounds with K = 0, 1, ...")
    for line in lines:
        table.add_row(
            line.prompts,
            str(line.chain_len),
            f"{line.tokens / line.seconds:.0f}",
            f"{line.of_plain:.3f}",
            f"{line.of_best:.3f}",
            " ".join(map(str, line.rounds_by_chain_len)) if line.chain_len == AUTO_LENGTH else "",
            end_section=line.chain_len == AUTO_LENGTH,
        )
    console.print(table)
    chosen = [line for line in lines if line.chain_len == AUTO_LENGTH]
    reached = all(min(line.of_plain, line.of_best) >= LIMIT for line in chosen)
    console.print(f"auto reaches {LIMIT} of plain and of the best K on every set: {reached}")
    console.print(f"all outputs identical: {same}")


if __name__ == "__main__":
    main()
