"""One picture: what drafts were worth."""

from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.runtime_runner.plots.picture import save_picture
from eagle_aot.runtime_runner.results.stats import Stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = 9.0, 3.6
DPI = 150
CONDITIONAL, ABSOLUTE = "#0072B2", "#E69F00"  # Okabe and Ito's, for colour-blind readers too


def plot_acceptance(stats: Stats, title: str, path: Path) -> None:
    """Write a PNG: acceptance by position of the chain, and tokens per round.

    `stats` are of a generation, or of several, that drafted.
    """
    from matplotlib.figure import Figure  # an optional dependency

    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    figure.suptitle(title, parse_math=False)
    by_position, per_round = figure.subplots(1, 2)
    draw_positions(by_position, stats)
    draw_tokens_per_round(per_round, stats)
    for axes in (by_position, per_round):
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
    axes.set_xlabel("position of the draft")
    axes.set_title("Drafts accepted", loc="left", fontsize="medium")
    axes.legend(frameon=False, loc="lower left")


def draw_tokens_per_round(axes: "Axes", stats: Stats) -> None:
    """A bar for each number of tokens that a round gave: its accepted drafts and one more."""
    places = range(1, len(stats.accepted_lengths) + 1)
    shares = [count / stats.rounds for count in stats.accepted_lengths]
    axes.bar(places, shares, color=CONDITIONAL, width=0.72)
    axes.set_xticks(places)
    axes.set_xlabel("tokens that a round gave")
    axes.set_title(f"Rounds; tau {stats.tau:.2f} tokens", loc="left", fontsize="medium")
