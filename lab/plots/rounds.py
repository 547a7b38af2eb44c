"""One picture: where a round's time goes."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.lab.bench.results import AtContext, Results, RoundTimes
from eagle_aot.lab.plots.picture import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES_WIDE, INCHES_PER_BAR, INCHES_PER_CONTEXT, MARGIN_INCHES = 10.0, 0.3, 0.5, 1.2
ROOM_FOR_LABELS = 1.36  # the axis is so much longer than the longest bar
DPI = 150
LEGEND = {  # Okabe and Ito's colours, which colour-blind readers can tell apart
    "draft": ("draft steps", "#E69F00"),
    "verify": ("verify", "#0072B2"),
    "reseed": ("reseed", "#009E73"),
    "other": ("all else on the device", "#999999"),
    "host": ("host", "#D55E00"),
}


def plot_rounds(results: Results, path: Path) -> None:
    """Write a PNG with one stacked bar per context and chain length."""
    from matplotlib.figure import Figure  # an optional dependency

    bars = sum(len(at.rounds) for at in results.contexts)
    height = MARGIN_INCHES + INCHES_PER_CONTEXT * len(results.contexts) + INCHES_PER_BAR * bars
    figure = Figure(figsize=(INCHES_WIDE, height), dpi=DPI, layout="constrained")
    where = f"{results.setup.artifact} on {results.setup.device}"
    figure.suptitle(f"Where a round's time goes: {where}", parse_math=False)
    rows = figure.subplots(len(results.contexts), sharex=True, squeeze=False)[:, 0]
    for axes, at in zip(rows, results.contexts, strict=True):
        draw_context(axes, at)
    rows[-1].set_xlabel("milliseconds per round, until the host has its tokens")
    longest = max(round_.wall_ms for at in results.contexts for round_ in at.rounds)
    rows[0].set_xlim(0, ROOM_FOR_LABELS * longest)
    handles = rows[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(handles[0]), frameon=False)
    save_picture(figure, path)


def draw_context(axes: "Axes", at: AtContext) -> None:
    """Plain decoding on top, longer chains below it, and a line where plain decoding ends."""
    left = [0.0] * len(at.rounds)
    places = range(len(at.rounds))
    parts = [asdict(at.breakdown(round_)) for round_ in at.rounds]
    for name, (label, colour) in LEGEND.items():
        widths = [max(0.0, part[name]) for part in parts]  # a difference may be noise below 0
        if not any(widths):  # the host, where it is the device
            continue
        axes.barh(places, widths, left=left, label=label, color=colour, height=0.72)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for place, end, round_ in zip(places, left, at.rounds, strict=True):
        total = axes.annotate(
            bar_label(at, round_), (end, place), (5, 0), textcoords="offset points", va="center"
        )
        total.set_in_layout(False)  # it may reach over the axis, which is long enough
    plain = at.plain_round.wall_ms
    axes.axvline(plain, label="plain decoding", color="black", linewidth=0.8, linestyle="--")
    axes.set_yticks(places, [round_.shape.label for round_ in at.rounds])
    axes.invert_yaxis()
    axes.set_title(f"at a context of {at.context:,} tokens", loc="left", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)


def bar_label(at: AtContext, round_: RoundTimes) -> str:
    """The round's time, and what its drafts must be worth."""
    total, break_even = f"{round_.wall_ms:.2f} ms", at.break_even_tau(round_)
    if round_.is_plain:
        return total
    if break_even >= round_.shape.depth + 1:
        return f"{total}, cannot pay"
    return f"{total}, pays above tau {break_even:.2f}"
