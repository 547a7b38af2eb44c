"""What are drafts worth, and does `auto` choose well? Against plain decoding.

\b
    eagle-export --target-model gemma4-tiny --output-dir gemma4-tiny-xnnpack
    python scripts/bench_chain_len.py gemma4-tiny-xnnpack

Prompts come from a file, in sets by their `kind`, or are made for the shipped pair: held-out
stories, random token ids, and both in turn. Of each prompt all chain lengths decode the same number
of tokens, one after the other in a rotating order, so that a drift of the machine meets all of
them. Exits with 1 when an output differs.
"""

import itertools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import click
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import Prompt
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import (
    commit_option,
    drafter_option,
    json_option,
    no_cuda_graph_option,
    parse_chain_lens,
)
from eagle_aot.lab.prompts import ALL, kinds_and_prompts
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH, ChainLen
from eagle_aot.runtime_runner.adaptive.shapes import AUTO_TREE, LONGEST
from eagle_aot.runtime_runner.decode.shape import Shape, parse_tree
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.frontend.result import Result

COLUMNS = ("prompts", "drafts", "tokens/s", "of plain", "of best", "tau", "accepted by position",
           "rounds")  # fmt: skip
SEED = 20261121
RANDOM_TOKENS = 8, 120  # of a random prompt
REPORT_WIDTH = 120
WARM_UP_TOKENS = 4


TREE_AUTO: Final = "tree auto"
Drafts = ChainLen | Shape | Literal["tree auto"]
CHOSEN = AUTO_LENGTH, TREE_AUTO
RATIOS = "of_plain", "of_best"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One set of prompts with one chain length, 0 for plain decoding, or one tree."""

    prompts: str
    drafts: str
    tokens: int
    seconds: float
    tau: float | None
    acceptance_by_position: list[float]
    of_plain: float
    of_best: float
    rounds_by_shape: dict[str, int]


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompts-jsonl", type=click.Path(path_type=Path),
              help="Prompts, each with its `kind`; default: made for the tiny pair.")  # fmt: skip
@click.option("--prompts", "count", type=click.IntRange(min=2), default=24, show_default=True,
              help="Prompts per set that is made.")  # fmt: skip
@click.option("--chain-lens", default=",".join(map(str, range(1, LONGEST + 1))),
              callback=lambda context, option, text: parse_chain_lens(text),
              help="Fixed ones; default: all of them.")  # fmt: skip
@click.option("--tree", "trees", multiple=True, metavar="DEPTH,TOPK,NODES|FILE|auto",
              help="A tree as well; may be given more than once.")  # fmt: skip
@drafter_option
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=128, show_default=True)
@no_cuda_graph_option
@commit_option
@json_option
def main(
    artifact: Path,
    prompts_jsonl: Path | None,
    count: int,
    chain_lens: list[ChainLen],
    trees: tuple[str, ...],
    drafter: str | None,
    max_new_tokens: int,
    no_cuda_graph: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Compare --chain-len auto and trees with plain decoding and fixed lengths of ARTIFACT."""
    sets = None if prompts_jsonl is None else by_kind(prompts_jsonl)
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph, drafter=drafter)
    sets = sets or prompt_sets(runner, count)
    lengths: list[Drafts] = [0, *chain_lens, *map(tree_of, trees), AUTO_LENGTH]
    every: dict[Drafts, list[Result]] = {length: [] for length in lengths}
    lines: list[Line] = []
    same = True
    first = next(iter(sets.values()))[0]
    for length in lengths:  # a first round takes the time of compiling and recording it
        decode(runner, first, length, WARM_UP_TOKENS)
    with Bar(console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("decoding", total=sum(map(len, sets.values())))
        for name, prompts in sets.items():
            results: dict[Drafts, list[Result]] = {length: [] for length in lengths}
            for number, prompt in enumerate(prompts):
                for length in rotated(lengths, number):
                    results[length].append(decode(runner, prompt, length, max_new_tokens))
                bar.advance(shown)
            same &= all(tokens(found) == tokens(results[0]) for found in results.values())
            lines += report(name, results)
            for length, found in results.items():
                every[length] += found
    if prompts_jsonl is not None:
        lines += report(ALL, every)
    show(artifact, lines, same, commit, as_json)
    sys.exit(0 if same else 1)


def by_kind(prompts_jsonl: Path) -> dict[str, list[Prompt]]:
    """A file's prompts, those of no `kind` under the file's name."""
    sets: dict[str, list[Prompt]] = {}
    for kind, prompt in kinds_and_prompts(prompts_jsonl, prompts_jsonl.name):
        sets.setdefault(kind, []).append(prompt)
    return sets


def tree_of(text: str) -> Shape | Literal["tree auto"]:
    """What --tree says. Raises SettingError for what is no tree."""
    return TREE_AUTO if text == AUTO_TREE else parse_tree(text)


def prompt_sets(runner: Runner, count: int) -> dict[str, list[Prompt]]:
    """By name, `count` prompts each, the same in every run."""
    rng = random.Random(SEED)
    easy: list[Prompt] = [
        story.question for story in itertools.islice(stories(SEED, "test"), count)
    ]
    noise: list[Prompt] = [
        [rng.randrange(runner.constants.vocab_size) for _ in range(rng.randint(*RANDOM_TOKENS))]
        for _ in range(count)
    ]
    mixed = itertools.chain(*zip(easy, noise, strict=True))
    return {"stories": easy, "random tokens": noise, "in turn": list(mixed)[:count]}


def rotated(lengths: list[Drafts], by: int) -> list[Drafts]:
    """The same ones, starting with another."""
    by %= len(lengths)
    return lengths[by:] + lengths[:by]


def decode(runner: Runner, prompt: Prompt, length: Drafts, max_new_tokens: int) -> Result:
    """0 decodes plainly."""
    if isinstance(length, Shape):
        return runner.generate(prompt, max_new_tokens, tree=length)
    if length == TREE_AUTO:
        return runner.generate(prompt, max_new_tokens, tree=AUTO_TREE)
    if length == 0:
        return runner.generate(prompt, max_new_tokens, speculate=False)
    return runner.generate(prompt, max_new_tokens, length)


def tokens(results: list[Result]) -> list[list[int]]:
    """All output."""
    return [result.token_ids for result in results]


def report(name: str, results: dict[Drafts, list[Result]]) -> Iterator[Line]:
    """A line for each chain length and tree; ratios are of tokens per second. What is best, is the
    best for `auto` of what it may choose: chains and plain decoding."""
    totals = {k: Stats.total(result.stats for result in found) for k, found in results.items()}
    plain = totals[0].decode_seconds
    fixed = {k: stats.decode_seconds for k, stats in totals.items() if k not in CHOSEN}
    best_chain = min(seconds for k, seconds in fixed.items() if not isinstance(k, Shape))
    for length, stats in totals.items():
        best = best_chain if length == AUTO_LENGTH else min(fixed.values())
        yield Line(
            prompts=name,
            drafts=str(length),
            tokens=stats.emitted,
            seconds=stats.decode_seconds,
            tau=stats.tau if length else None,
            acceptance_by_position=stats.acceptance_by_position,
            of_plain=plain / stats.decode_seconds,
            of_best=best / stats.decode_seconds,
            rounds_by_shape=dict(stats.rounds_by_shape.most_common()),
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
    table = Table(*COLUMNS)
    for line in lines:
        table.add_row(
            line.prompts,
            line.drafts,
            f"{line.tokens / line.seconds:.0f}",
            f"{line.of_plain:.3f}",
            f"{line.of_best:.3f}",
            "" if line.tau is None else f"{line.tau:.2f}",
            " ".join(f"{share:.2f}" for share in line.acceptance_by_position),
            ", ".join(f"{shape}: {count}" for shape, count in line.rounds_by_shape.items()),
            end_section=line.drafts == AUTO_LENGTH,
        )
    console.print(table)
    for name in CHOSEN:
        chosen = [line for line in lines if line.drafts == name]
        if chosen:
            plain, best = (min(getattr(line, of) for line in chosen) for of in RATIOS)
            console.print(f"on every set {name} has {plain:.3f} of plain, {best:.3f} of the best")
    console.print(f"all outputs identical: {same}")


if __name__ == "__main__":
    main()
