"""One picture: which text had which of the caches, and when."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.lab.plots.picture import save_picture
from eagle_aot.runtime_runner.results.result import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = 9.0, 3.6
DPI = 150
PROMPT, ANSWER = "#E69F00", "#0072B2"  # Okabe and Ito's, for colour-blind readers too


def plot_sequences(spans: Sequence[Span], title: str, path: Path) -> None:
    """Write a PNG: a row for each cache, and in it a bar for each text, at least one, over time."""
    from matplotlib.figure import Figure  # an optional dependency

    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    figure.suptitle(title, parse_math=False)
    draw_sequences(figure.subplots(), spans)
    save_picture(figure, path)


def draw_sequences(axes: "Axes", spans: Sequence[Span]) -> None:
    """Prompts and answers in seconds since the first text began."""
    begin = min(span.started for span in spans)
    rows = [span.sequence for span in spans]
    starts = [span.started - begin for span in spans]
    firsts = [span.first_token - begin for span in spans]
    prompts = [span.first_token - span.started for span in spans]
    answers = [span.ended - span.first_token for span in spans]
    axes.barh(rows, prompts, left=starts, color=PROMPT, edgecolor="white", label="prompt")
    axes.barh(rows, answers, left=firsts, color=ANSWER, edgecolor="white", label="answer")
    axes.set_yticks(sorted(set(rows)))
    axes.set_ylabel("sequence")
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
