"""`eagle-bench --part auto`: does `auto` choose well? Compare it with plain decoding and fixed
chains and trees.

Prompts come from a file, in sets by their `kind`, or are made for the shipped pair: held-out
stories, random token ids, and both in turn. Of each prompt all shapes decode the same tokens, one
after the other in a rotating order, so that a drift of the machine affects all of them. Exits with
1 where an output differs.
"""

import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from eagle_aot.common.prompts import Prompt
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.spec import BenchSpec
from eagle_aot.lab.options import parse_chain_lens
from eagle_aot.lab.prompts import ALL, kinds_and_prompts
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.shape import AUTO, MAX_AUTO_DEPTH, ChainLen, Shape, parse_tree
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.frontend.generation import Result

SEED = 20261121
RANDOM_TOKENS = 8, 120  # the range of a random prompt's length
WARM_UP_TOKENS = 4
TREE_AUTO: Final = "tree auto"
DraftShape = ChainLen | Shape | Literal["tree auto"]
"""A chain length, 0 for plain decoding, or a tree."""
AUTOMATIC = AUTO, TREE_AUTO


class AutoSpec(BenchSpec, kw_only=True, frozen=True):
    """The prompts and shapes."""

    prompts_jsonl: Annotated[
        Path | None,
        Option("Prompts, each with its `kind`; default: prompts made for the shipped pair.",
               metavar="FILE"),
    ] = None  # fmt: skip
    prompts: Annotated[int, Option("Prompts of each set without --prompts-jsonl.", least=2)] = 24
    chain_lens: Annotated[
        tuple[ChainLen, ...],
        Option("Fixed chains to compare with auto.", metavar="K,...",
               commas=True, parse=parse_chain_lens),
    ] = tuple(range(1, MAX_AUTO_DEPTH + 1))  # fmt: skip
    trees: Annotated[
        tuple[str, ...],
        Option("A fixed tree, or auto; may be repeated.", metavar="DEPTH,TOPK,NODES|FILE|auto",
               flag="--tree"),
    ] = ()  # fmt: skip
    max_new_tokens: Annotated[int, Option("Output tokens of a prompt.", least=2)] = 128

    @property
    def shapes(self) -> list[DraftShape]:
        """Plain decoding, the fixed shapes, and auto. Raises SettingError for what is no tree."""
        trees: list[DraftShape] = [
            TREE_AUTO if tree == AUTO else parse_tree(tree) for tree in self.trees
        ]
        return [0, *self.chain_lens, *trees, AUTO]


@dataclass(frozen=True, kw_only=True)
class ShapeSpeed:
    """One set of prompts with one shape. Ratios are of tokens per second.

    `of_best` compares with the best fixed shape; for `auto` with the best that it may choose.
    """

    prompts: str
    drafts: str
    tokens: int
    seconds: float
    tau: float | None
    acceptance_by_position: list[float]
    of_plain: float
    of_best: float
    rounds_by_shape: dict[str, int]


@spec_command(AutoSpec)
def main(spec: AutoSpec) -> None:
    """Compare --chain-len auto and --tree auto with plain decoding and fixed shapes of ARTIFACT."""
    file, shapes = spec.prompts_jsonl, spec.shapes
    sets = None if file is None else by_kind(file)
    runner = spec.load()
    sets = sets or made_prompts(runner, spec.prompts)
    first = next(iter(sets.values()))[0]
    for shape in shapes:  # a shape's first round includes compiling and recording it
        decode(runner, first, shape, WARM_UP_TOKENS)
    lines, same = list[ShapeSpeed](), True
    everything: dict[DraftShape, list[Result]] = {shape: [] for shape in shapes}
    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("decoding", total=sum(map(len, sets.values())))
        for name, prompts in sets.items():
            results: dict[DraftShape, list[Result]] = {shape: [] for shape in shapes}
            for number, prompt in enumerate(prompts):
                for shape in rotated(shapes, number):
                    results[shape].append(decode(runner, prompt, shape, spec.max_new_tokens))
                bar.advance(task)
            same &= all(outputs(group) == outputs(results[0]) for group in results.values())
            lines += speeds_of(name, results)
            for shape, group in results.items():
                everything[shape] += group
    if file is not None:
        lines += speeds_of(ALL, everything)
    spec.show(
        f"chains and trees of {spec.name}",
        {"identical": same, "lines": [asdict(line) for line in lines]},
        speed_table(lines),
        *summary(lines),
        f"all outputs identical: {same}",
    )
    sys.exit(0 if same else 1)


def by_kind(prompts_jsonl: Path) -> dict[str, list[Prompt]]:
    """Return a file's prompts by kind, those of no kind under the file's name."""
    sets: dict[str, list[Prompt]] = {}
    for kind, prompt in kinds_and_prompts(prompts_jsonl, prompts_jsonl.name):
        sets.setdefault(kind, []).append(prompt)
    return sets


def made_prompts(runner: Runner, count: int) -> dict[str, list[Prompt]]:
    """Return sets of `count` prompts by name, the same in every run."""
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


def rotated(shapes: list[DraftShape], by: int) -> list[DraftShape]:
    """Return the same shapes, starting with another one."""
    by %= len(shapes)
    return shapes[by:] + shapes[:by]


def decode(runner: Runner, prompt: Prompt, shape: DraftShape, max_new_tokens: int) -> Result:
    """Decode one prompt with one shape."""
    if isinstance(shape, Shape):
        return runner.generate(prompt, max_new_tokens, tree=shape)
    if shape == TREE_AUTO:
        return runner.generate(prompt, max_new_tokens, tree=AUTO)
    if shape == 0:
        return runner.generate(prompt, max_new_tokens, speculate=False)
    return runner.generate(prompt, max_new_tokens, shape)


def outputs(results: list[Result]) -> list[list[int]]:
    """Return the token ids of all results."""
    return [result.token_ids for result in results]


def speeds_of(name: str, results: dict[DraftShape, list[Result]]) -> Iterator[ShapeSpeed]:
    """Yield the speed of each shape. Auto chains may choose chains and plain decoding only."""
    totals = {k: Stats.total(result.stats for result in group) for k, group in results.items()}
    plain = totals[0].decode_seconds
    fixed = {k: stats.decode_seconds for k, stats in totals.items() if k not in AUTOMATIC}
    best_chain = min(seconds for k, seconds in fixed.items() if not isinstance(k, Shape))
    for shape, stats in totals.items():
        best = best_chain if shape == AUTO else min(fixed.values())
        yield ShapeSpeed(
            prompts=name,
            drafts=str(shape),
            tokens=stats.emitted,
            seconds=stats.decode_seconds,
            tau=stats.tau if shape else None,
            acceptance_by_position=stats.acceptance_by_position,
            of_plain=plain / stats.decode_seconds,
            of_best=best / stats.decode_seconds,
            rounds_by_shape=dict(stats.rounds_by_shape.most_common()),
        )


def speed_table(lines: list[ShapeSpeed]) -> Table:
    """Return a row for each set and shape."""
    table = Table("prompts", "drafts", "tokens/s", "of plain", "of best", "tau",
                  "accepted by position", "rounds")  # fmt: skip
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
            end_section=line.drafts == AUTO,
        )
    return table


def summary(lines: list[ShapeSpeed]) -> Iterator[str]:
    """Yield the worst ratios of auto over all sets."""
    for name in AUTOMATIC:
        chosen = [line for line in lines if line.drafts == name]
        if chosen:
            plain, best = min(x.of_plain for x in chosen), min(x.of_best for x in chosen)
            yield f"on every set {name} has at least {plain:.3f} of plain, {best:.3f} of the best"
