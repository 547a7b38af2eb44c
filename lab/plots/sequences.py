"""One picture: which text had which of the caches, and when."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.lab.plots.picture import save_picture
from eagle_aot.runtime_runner.engine.request import RequestTimes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = 9.0, 3.6
DPI = 150
PROMPT, ANSWER = "#E69F00", "#0072B2"  # Okabe and Ito's, for colour-blind readers too


def plot_sequences(requests: Sequence[RequestTimes], title: str, path: Path) -> None:
    """Write a PNG: a row for each cache, and in it a bar for each text, at least one, over time."""
    from matplotlib.figure import Figure  # an optional dependency

    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    figure.suptitle(title, parse_math=False)
    draw_sequences(figure.subplots(), requests)
    save_picture(figure, path)


def draw_sequences(axes: "Axes", requests: Sequence[RequestTimes]) -> None:
    """Prompts and answers in seconds since the first text began."""
    begin = min(times.started for times in requests)
    rows = [times.sequence for times in requests]
    starts = [times.started - begin for times in requests]
    firsts = [times.first_token - begin for times in requests]
    prompts = [times.first_token - times.started for times in requests]
    answers = [times.ended - times.first_token for times in requests]
    axes.barh(rows, prompts, left=starts, color=PROMPT, edgecolor="white", label="prompt")
    axes.barh(rows, answers, left=firsts, color=ANSWER, edgecolor="white", label="answer")
    axes.set_yticks(sorted(set(rows)))
    axes.set_ylabel("sequence")
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
