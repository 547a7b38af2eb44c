"""Draw the tree of drafts of one round, and the path that the target accepted.

\b
    python scripts/draw_tree.py smollm2-int8 --prompt "..." --tree 6,8,32 --output tree.svg

Of the first rounds behind a prompt it takes the one that gave most tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

from eagle_aot.common.command import eagle_command
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.checks.request import check_prompt, chosen_tree
from eagle_aot.runtime_runner.generate import prefill
from eagle_aot.runtime_runner.results.stats import Stats
from eagle_aot.runtime_runner.rounds.round import Outcome, Round, Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.rounds.step import Draft
from shared.watched import Watched

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCEPTED, OTHER = "#0072B2", "#8a949e"
LONGEST = 14  # characters of a token


@dataclass(frozen=True)
class Grown:
    """A round's tree and what came of it: `path` are the rows that were accepted, the bonus, row 0,
    first."""

    bonus: int
    tokens: list[int]
    parents: list[int]
    path: list[int]
    following: int


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompt", required=True)
@click.option("--tree", default="6,8,32", show_default=True, metavar="DEPTH,TOPK,NODES|FILE")
@click.option("--rounds", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=Path("tree.svg"),
              show_default=True)  # fmt: skip
def main(artifact: Path, prompt: str, tree: str, rounds: int, output: Path) -> None:
    """Draw a tree of ARTIFACT's drafts."""
    runner = load_artifact(artifact)
    drafter = runner.drafter
    shape = chosen_tree(tree, drafter.kind, drafter.grows_trees, runner.constants)
    best = max(grow(runner, prompt, shape, rounds), key=lambda grown: len(grown.path))
    draw(runner, best, f"a round of tree {shape}: {len(best.path)} tokens", output)
    click.echo(f"{output}: {len(best.path)} tokens in the round")


@torch.no_grad()
def grow(runner: Runner, prompt: str, shape: Shape, rounds: int) -> list[Grown]:
    """So many rounds behind a prompt, fewer where the text or its context ends."""
    ids, constants = runner.encode(prompt), runner.constants
    check_prompt(ids, constants)
    room = (constants.max_seq_len - len(ids)) // (shape.depth + 1)
    drafter = Watched(runner.drafter)
    running = Running([0], runner.constants.tail, runner.executor.device)
    round_ = Round(runner.target, drafter, shape, running)
    prefill(round_, ids, Stats(chain_len=shape.depth))
    found = []
    for _ in range(max(1, min(rounds, room))):
        bonus = int(running.bonus)
        (outcome,) = round_.outcomes(round_.step())
        found.append(grown_of(bonus, drafter.last, outcome))
        if {*constants.eos_ids} & {*outcome.tokens[: outcome.accepted + 1]}:
            break
    return found


def grown_of(bonus: int, draft: Draft, outcome: Outcome) -> Grown:
    """On the host."""
    tokens = draft.tokens[0].tolist()
    parents = [*range(len(tokens))] if draft.parents is None else draft.parents[0].tolist()
    path = [0]
    for token in outcome.tokens[: outcome.accepted]:
        behind = (row for row, parent in enumerate(parents, start=1) if parent == path[-1])
        path.append(next(row for row in behind if tokens[row - 1] == token))
    return Grown(bonus, tokens, parents, path, outcome.tokens[outcome.accepted])


def draw(runner: Runner, grown: Grown, title: str, output: Path) -> None:
    """From left to right, siblings below one another, the likeliest first."""
    import matplotlib as mpl  # an optional dependency
    from matplotlib.figure import Figure

    mpl.rcParams["svg.fonttype"] = "none"  # text as text
    places = layout(grown.parents)
    rows, depth = max(y for _, y in places), max(x for x, _ in places)
    figure = Figure(figsize=(1.7 * (depth + 2), 0.26 * (rows + 3)), layout="constrained")
    axes = figure.add_subplot()
    texts = [grown.bonus, *grown.tokens]
    for row, (x, y) in enumerate(places):
        colour = ACCEPTED if row in grown.path else OTHER
        if row:
            start = places[grown.parents[row - 1]]
            axes.plot([start[0] + 0.62, x - 0.04], [start[1], y], color=colour, linewidth=1)
        label(axes, shown(runner, texts[row]), x, y, colour, bold=row in grown.path)
    x, y = places[grown.path[-1]]
    axes.plot([x + 0.62, x + 0.96], [y, y], color=ACCEPTED, linewidth=1, linestyle=":")
    label(axes, shown(runner, grown.following), x + 1, y, ACCEPTED, bold=True)
    axes.set(xlim=(-0.1, depth + 2), ylim=(rows + 1, -1), title=title)
    axes.axis("off")
    figure.savefig(output)


def label(axes: "Axes", text: str, x: float, y: float, colour: str, *, bold: bool) -> None:
    """One token."""
    weight = "bold" if bold else "normal"
    axes.text(x, y, text, color=colour, weight=weight, va="center", fontsize=9, parse_math=False)


def layout(parents: list[int]) -> list[tuple[int, int]]:
    """Depth and line of the bonus and every node; each leaf has a line of its own."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for row, parent in enumerate(parents, start=1):
        children[parent].append(row)
    places = [(0, 0)] * len(children)
    line = -1

    def visit(row: int, depth: int) -> None:
        nonlocal line
        line += not children[row]
        for child in children[row]:
            visit(child, depth + 1)
        places[row] = depth, places[children[row][0]][1] if children[row] else line

    visit(0, 0)
    return places


def shown(runner: Runner, token: int) -> str:
    """A token's text, spaces and line ends made visible."""
    text = runner.tokenizer.decode([token]).replace(" ", "␣").replace("\n", "⏎")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


if __name__ == "__main__":
    main()
