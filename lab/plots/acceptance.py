"""One picture: what drafts were worth."""

from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.lab.plots.picture import save_picture
from eagle_aot.runtime_runner.decode.stats import Stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES_WIDE, INCHES_HIGH = 4.5, 3.6  # of each part
DPI = 150
CONDITIONAL, ABSOLUTE = "#0072B2", "#E69F00"  # Okabe and Ito's, for colour-blind readers too


def plot_acceptance(stats: Stats, title: str, path: Path) -> None:
    """Write a PNG: acceptance by position of the chain, and tokens per round; of a tree, acceptance
    by depth, tokens per round, and acceptance by rank.

    `stats` are of a generation, or of several, that drafted.
    """
    from matplotlib.figure import Figure  # an optional dependency

    parts = [draw_positions, draw_tokens_per_round]
    if stats.offered_at_rank:
        parts.append(draw_ranks)
    size = len(parts) * INCHES_WIDE, INCHES_HIGH
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    figure.suptitle(title, parse_math=False)
    for axes, draw in zip(figure.subplots(1, len(parts)), parts, strict=True):
        draw(axes, stats)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0, 1.1)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    save_picture(figure, path)


def draw_positions(axes: "Axes", stats: Stats) -> None:
    """Two lines over the positions 1 .. K."""
    places = range(1, len(stats.reached) + 1)
    for label, values, colour in (
        ("of rounds that reached it", stats.acceptance_by_position, CONDITIONAL),
        ("of all rounds", stats.absolute_acceptance_by_position, ABSOLUTE),
    ):
        axes.plot(places, values, label=label, color=colour, marker="o")
    axes.set_xticks(places)
    axes.set_xlabel("depth of the draft" if stats.offered_at_rank else "position of the draft")
    axes.set_title("Drafts accepted", loc="left", fontsize="medium")
    axes.legend(frameon=False, loc="lower left")


def draw_tokens_per_round(axes: "Axes", stats: Stats) -> None:
    """A bar for each number of tokens that a round gave, its accepted drafts and one more: up to
    the most that one gave or, of chains, that there could be."""
    counts = stats.accepted_lengths
    if stats.offered_at_rank:  # of as many as there were nodes
        counts = counts[: max(n for n, count in enumerate(counts) if count) + 1]
    places = range(1, len(counts) + 1)
    shares = [count / stats.rounds for count in counts]
    axes.bar(places, shares, color=CONDITIONAL, width=0.72)
    axes.set_xticks(places)
    axes.set_xlabel("tokens that a round gave")
    axes.set_title(f"Rounds; tau {stats.tau:.2f} tokens", loc="left", fontsize="medium")


def draw_ranks(axes: "Axes", stats: Stats) -> None:
    """A bar for each rank among siblings: of those drafts that were looked at, how many were
    right."""
    places = range(1, len(stats.offered_at_rank) + 1)
    axes.bar(places, stats.acceptance_by_rank, color=CONDITIONAL, width=0.72)
    axes.set_xticks(places)
    axes.set_xlabel("rank among siblings")
    axes.set_title("Drafts accepted, by rank", loc="left", fontsize="medium")
