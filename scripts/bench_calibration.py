"""Are a head's probabilities to be believed? Of a draft that was looked at, against how often the
target accepted it, as the head gives them and as `--tree auto` reads them.

\b
    python scripts/bench_calibration.py smollm2-int8 --prompts-jsonl prompts.jsonl

Calibration is learned on the way, as it is while decoding: each draft is judged by what was known
before it.
"""

import json
import math
from bisect import bisect
from collections.abc import Iterator, Sequence
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
    reliability, judged = Reliability(), list[Judged]()
    for prompt in track(prompts, console=Console(stderr=True), transient=True):
        for chances, came in looked_at(runner, prompt, shape, max_new_tokens):
            judged += judge(reliability, chances, came)
    head = header(f"calibration of {artifact.name}, tree {shape}", commit)
    found = list(bins(judged))
    if as_json:
        lines = [asdict(line) for line in found]
        click.echo(json.dumps({**asdict(head), "bins": lines, "errors": errors(found)}))
        return
    console = Console(width=REPORT_WIDTH, highlight=False)
    console.print(*title_lines(head), "", table(found), sep="\n")
    for name, error in errors(found).items():
        console.print(f"expected calibration error, {name}: {error:.4f}")


def of_each(prompts: Sequence[tuple[str, Prompt]], count: int | None) -> list[Prompt]:
    """The first so many of each kind, all of them for None."""
    kinds = [kind for kind, _ in prompts]
    places = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
    return [p for (_, p), place in zip(prompts, places, strict=True) if not count or place < count]


@torch.no_grad()
def looked_at(
    runner: Runner, prompt: Prompt, shape: Shape, tokens: int
) -> Iterator[tuple[list[float], list[bool]]]:
    """Of the siblings behind each accepted token, the head's probabilities, and which one came."""
    ids, constants = runner.encode(prompt), runner.constants
    check_prompt(ids, constants)
    drafter = Watched(runner.drafter)
    running = Running([0], constants.tail, runner.executor.device)
    round_ = Round(runner.target, drafter, shape, running)
    prefill(round_, ids, Stats(chain_len=shape.depth))
    left = min(tokens, constants.max_seq_len - len(ids) - shape.depth)
    while left > 0:
        (outcome,) = round_.outcomes(round_.step())
        yield from siblings(drafter.last, outcome)
        emitted = outcome.tokens[: outcome.accepted + 1]
        left -= len(emitted)
        if {*constants.eos_ids} & {*emitted}:
            return


def siblings(draft: Draft, outcome: Outcome) -> Iterator[tuple[list[float], list[bool]]]:
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


if __name__ == "__main__":
    main()
