"""Are a head's probabilities to be believed? Of a draft that was looked at, against how often the
target accepted it, as the head gives them and as `--tree auto` reads them.

\b
    python scripts/bench_calibration.py smollm2-int8 --prompts-jsonl prompts.jsonl

Calibration is learned on the way, as it is while decoding: each draft is judged by what was known
before it. And how a tree's path goes on: by depth, how often the likeliest draft is right, and a
sibling where it is wrong, as long as all before were the likeliest ones and off that chain.
"""

import json
import math
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.adaptive.acceptance.reliability import EDGES, Reliability
from eagle_aot.runtime_runner.checks.request import check_prompt, chosen_tree
from eagle_aot.runtime_runner.generate import prefill
from eagle_aot.runtime_runner.results.stats import Stats
from eagle_aot.runtime_runner.rounds.round import Outcome, Round, Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.rounds.step import Draft
from shared.header import header, title_lines
from shared.kinds import kinds_and_prompts
from shared.options import commit_option, json_option
from shared.watched import Watched

REPORT_WIDTH = 120


class Judged(NamedTuple):
    """A draft that was looked at: the head's probability of it, the calibrated one, and whether
    the target chose it."""

    raw: float
    calibrated: float
    came: bool


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Drafts whose probability is between two edges, and means over them."""

    low: float
    high: float
    drafts: int
    raw: float
    calibrated: float
    came: float


@dataclass(kw_only=True)
class OfPath:
    """At one depth of a tree, on the chain of its likeliest drafts or off it: how often a path got
    there, how often the likeliest draft behind it was right, and a sibling. There may be none."""

    depth: int
    on_chain: bool
    reached: int = 0
    likeliest: int = 0
    sibling: int = 0

    def shares(self) -> tuple[float, float]:
        """The likeliest of all, and siblings where it was wrong."""
        missed = self.reached - self.likeliest
        return self.likeliest / self.reached, self.sibling / missed if missed else 0.0


Siblings = tuple[list[float], list[bool]]
"""The head's probabilities of the drafts behind one token, and which of them came."""


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompts-jsonl", type=click.Path(path_type=Path), required=True)
@click.option("--prompts", "count", type=click.IntRange(min=1), help="Of each kind at most.")
@click.option("--tree", default="4,8,32", show_default=True, metavar="DEPTH,TOPK,NODES|FILE")
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=64, show_default=True)
@commit_option
@json_option
def main(
    artifact: Path,
    prompts_jsonl: Path,
    count: int | None,
    tree: str,
    max_new_tokens: int,
    commit: str | None,
    as_json: bool,
) -> None:
    """Hold the probabilities of ARTIFACT's head against what its target accepts."""
    prompts = of_each(kinds_and_prompts(prompts_jsonl, ""), count)
    runner = load_artifact(artifact)
    drafter = runner.drafter
    shape = chosen_tree(tree, drafter.kind, drafter.grows_trees, runner.constants)
    reliability, judged, rounds = Reliability(), list[Judged](), list[list[Siblings]]()
    for prompt in track(prompts, console=Console(stderr=True), transient=True):
        for path in looked_at(runner, prompt, shape, max_new_tokens):
            rounds.append(path)
            for chances, came in path:
                judged += judge(reliability, chances, came)
    head = header(f"calibration of {artifact.name}, tree {shape}", commit)
    found, by_path = list(bins(judged)), of_paths(rounds, shape.depth)
    if as_json:
        lines = {"bins": [*map(asdict, found)], "paths": [*map(asdict, by_path)]}
        click.echo(json.dumps({**asdict(head), **lines, "errors": errors(found)}))
        return
    console = Console(width=REPORT_WIDTH, highlight=False)
    console.print(*title_lines(head), "", table(found), sep="\n")
    for name, error in errors(found).items():
        console.print(f"expected calibration error, {name}: {error:.4f}")
    console.print("", path_table(by_path), sep="\n")


def of_each(prompts: Sequence[tuple[str, Prompt]], count: int | None) -> list[Prompt]:
    """The first so many of each kind, all of them for None."""
    kinds = [kind for kind, _ in prompts]
    places = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
    return [p for (_, p), place in zip(prompts, places, strict=True) if not count or place < count]


@torch.no_grad()
def looked_at(
    runner: Runner, prompt: Prompt, shape: Shape, tokens: int
) -> Iterator[list[Siblings]]:
    """Of each round, the drafts behind the bonus and behind each accepted one."""
    ids, constants = runner.encode(prompt), runner.constants
    check_prompt(ids, constants)
    drafter = Watched(runner.drafter)
    running = Running([0], constants.tail, runner.executor.device)
    round_ = Round(runner.target, drafter, shape, running)
    prefill(round_, ids, Stats(chain_len=shape.depth))
    left = min(tokens, constants.max_seq_len - len(ids) - shape.depth)
    while left > 0:
        (outcome,) = round_.outcomes(round_.step())
        yield list(siblings(drafter.last, outcome))
        emitted = outcome.tokens[: outcome.accepted + 1]
        left -= len(emitted)
        if {*constants.eos_ids} & {*emitted}:
            return


def siblings(draft: Draft, outcome: Outcome) -> Iterator[Siblings]:
    """The same of one round."""
    assert draft.parents is not None and draft.scores is not None, "a chain has no siblings"
    tokens, parents = draft.tokens[0].tolist(), draft.parents[0].tolist()
    scores = [0.0, *draft.scores[0].tolist()]
    row: int | None = 0
    for token in outcome.tokens[: outcome.accepted + 1]:
        rows = [i for i, parent in enumerate(parents, start=1) if parent == row]
        came = [tokens[i - 1] == token for i in rows]
        yield [math.exp(scores[i] - scores[row or 0]) for i in rows], came
        row = next((i for i, right in zip(rows, came, strict=True) if right), None)


def judge(
    reliability: Reliability, chances: Sequence[float], came: Sequence[bool]
) -> Iterator[Judged]:
    """Each of some siblings, and learn from them."""
    calibrated = reliability.calibrated(chances)
    for chance, right in zip(chances, came, strict=True):
        reliability.add(chance, right)
    yield from map(Judged, chances, calibrated, came)


def of_paths(rounds: Iterable[Sequence[Siblings]], deepest: int) -> list[OfPath]:
    """By depth, first on the chain and then off it, of a tree that is as deep."""
    found: dict[tuple[bool, int], OfPath] = {}
    for path in rounds:
        on_chain = True
        for depth, (chances, came) in enumerate(path[:deepest]):
            line = OfPath(depth=depth + 1, on_chain=on_chain)
            line = found.setdefault((not on_chain, depth), line)
            likeliest = bool(came) and came[chances.index(max(chances))]
            line.reached += 1
            line.likeliest += likeliest
            line.sibling += any(came) and not likeliest
            on_chain &= likeliest
    return [found[where] for where in sorted(found)]


def bins(judged: Sequence[Judged]) -> Iterator[Bin]:
    """By the head's probability, those in which there is a draft."""
    edges = 0.0, *EDGES, 1.0
    for at, (low, high) in enumerate(pairwise(edges)):
        inside = [draft for draft in judged if bisect(EDGES, draft.raw) == at]
        if inside:
            means = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            raw, calibrated, came = means
            yield Bin(
                low=low, high=high, drafts=len(inside), raw=raw, calibrated=calibrated, came=came
            )


def errors(found: Sequence[Bin]) -> dict[str, float]:
    """Expected calibration error (Naeini et al., 2015): the mean distance of a bin's probability
    from what came of it, weighed by its drafts."""
    drafts = sum(line.drafts for line in found)
    return {
        name: sum(line.drafts * abs(getattr(line, name) - line.came) for line in found) / drafts
        for name in ("raw", "calibrated")
    }


def table(found: Sequence[Bin]) -> Table:
    """One line for each bin."""
    shown = Table("head's probability", "drafts", "mean", "calibrated", "accepted")
    for line in found:
        where = f"{line.low:.2f} to {line.high:.2f}"
        means = (f"{mean:.3f}" for mean in (line.raw, line.calibrated, line.came))
        shown.add_row(where, str(line.drafts), *means)
    return shown


def path_table(found: Sequence[OfPath]) -> Table:
    """One line for each depth, on the chain and off it."""
    columns = "path", "depth", "reached", "the likeliest right", "a sibling, where it is wrong"
    shown = Table(*columns)
    for line in found:
        where = "on the chain" if line.on_chain else "off it"
        shares = (f"{share:.2f}" for share in line.shares())
        shown.add_row(where, str(line.depth), str(line.reached), *shares)
    return shown


if __name__ == "__main__":
    main()
