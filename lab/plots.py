"""Plots of the acceptance of drafts; matplotlib is imported when one is drawn."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.common.errors import SettingError, UnsupportedError, reason
from eagle_aot.common.text import printable
from eagle_aot.runtime_runner.decode.stats import Stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES_WIDE, INCHES_HIGH = 4.5, 3.6  # of each part
DPI = 150
CONDITIONAL, ABSOLUTE = "#0072B2", "#E69F00"  # Okabe and Ito's, for colour-blind readers too


def plot_acceptance(stats: Stats, title: str, path: Path) -> None:
    """Write a PNG: acceptance by position of a chain and tokens per round; for a tree, acceptance
    by depth, tokens per round, and acceptance by rank.

    `stats` are those of one or several generations with drafts.
    """
    from matplotlib.figure import Figure  # an optional dependency

    parts = [draw_positions, draw_tokens_per_round]
    if stats.offered_at_rank:
        parts.append(draw_ranks)
    size = len(parts) * INCHES_WIDE, INCHES_HIGH
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    figure.suptitle(printable(title), parse_math=False)  # a directory may have any name
    for axes, draw in zip(figure.subplots(1, len(parts)), parts, strict=True):
        draw(axes, stats)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0, 1.1)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    save_picture(figure, path)


def draw_positions(axes: "Axes", stats: Stats) -> None:
    """Draw two lines over the positions 1 .. K."""
    positions = range(1, len(stats.reached) + 1)
    for label, values, colour in (
        ("of rounds that reached it", stats.acceptance_by_position, CONDITIONAL),
        ("of all rounds", stats.absolute_acceptance_by_position, ABSOLUTE),
    ):
        axes.plot(positions, values, label=label, color=colour, marker="o")
    axes.set_xticks(positions)
    axes.set_xlabel("depth of the draft" if stats.offered_at_rank else "position of the draft")
    axes.set_title("Drafts accepted", loc="left", fontsize="medium")
    axes.legend(frameon=False, loc="lower left")


def draw_tokens_per_round(axes: "Axes", stats: Stats) -> None:
    """Draw a bar for each number of tokens that a round emitted, its accepted drafts and the bonus
    token: up to the longest chain or, for trees, up to the most that occurred."""
    counts = stats.accepted_lengths
    if stats.offered_at_rank:  # a count for each node
        counts = counts[: max(n for n, count in enumerate(counts) if count) + 1]
    positions = range(1, len(counts) + 1)
    shares = [count / stats.rounds for count in counts]
    axes.bar(positions, shares, color=CONDITIONAL, width=0.72)
    axes.set_xticks(positions)
    axes.set_xlabel("tokens emitted by a round")
    axes.set_title(f"Rounds; tau {stats.tau:.2f} tokens", loc="left", fontsize="medium")


def draw_ranks(axes: "Axes", stats: Stats) -> None:
    """Draw a bar for each rank among siblings: the share of verified drafts that were accepted."""
    positions = range(1, len(stats.offered_at_rank) + 1)
    axes.bar(positions, stats.acceptance_by_rank, color=CONDITIONAL, width=0.72)
    axes.set_xticks(positions)
    axes.set_xlabel("rank among siblings")
    axes.set_title("Drafts accepted, by rank", loc="left", fontsize="medium")


def check_plot(path: Path) -> None:
    """Raise SettingError or UnsupportedError, before any work, if the plot cannot be written."""
    if path.suffix != ".png":
        raise SettingError(f"--plot {path}: must end in .png")
    if not os.path.isdir(path.parent):
        raise SettingError(f"--plot {path}: there is no such directory")
    if find_spec("matplotlib") is None:
        raise UnsupportedError('--plot needs matplotlib: pip install "eagle-aot[bench]"')
    try:
        open_for_writing(path)
    except OSError as error:
        raise SettingError(f"--plot {path}: cannot be written: {reason(error)}") from error


def open_for_writing(path: Path) -> None:
    """Open a file for writing and leave everything as it was. Raises OSError."""
    was_there = os.path.lexists(path)
    path.open("ab").close()
    if not was_there:
        path.unlink()


def save_picture(figure: "Figure", path: Path) -> None:
    """Write a PNG, whole or not at all. Raises SettingError if it cannot be written."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format="png")
        partial.replace(path)
    except OSError as error:
        raise SettingError(f"--plot {path}: cannot be written: {reason(error)}") from error
    finally:
        partial.unlink(missing_ok=True)
