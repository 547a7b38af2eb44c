"""A self-test for a reader."""

from rich.console import Console
from rich.table import Table

from eagle_aot.common.self_test import by_position
from eagle_aot.common.text import one_line
from eagle_aot.export.drafters.eagle3.self_test.comparison import log_gain
from eagle_aot.export.drafters.eagle3.self_test.verdict import Entry, Verdict


def show(verdict: Verdict, console: Console) -> None:
    """The ranking, where there is one, and the finding, but for a warning: that is an error."""
    if verdict.chosen is not None:
        console.print(ranking(verdict))
        console.print(_terms(verdict), markup=False, highlight=False)
    if not verdict.is_warning:
        announce(verdict, console)


def announce(verdict: Verdict, console: Console) -> None:
    """The finding in one line, which is loud where something should be done."""
    style, word = ("bold red", "WARNING: ") if verdict.is_warning else (None, "")
    line = one_line(f"{word}self-test: {verdict.message}")
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def ranking(verdict: Verdict) -> Table:
    """Best first."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)  # 80 columns wide at most
    for header in ("reading", "nats", "log ratio", "tau", "acceptance"):
        table.add_column(header, justify="left" if header == "reading" else "right", no_wrap=True)
    for entry in verdict.entries:
        row = row_of(entry, verdict)
        table.add_row(*row, style="bold" if entry is verdict.chosen else None)
    return table


def row_of(entry: Entry, verdict: Verdict) -> tuple[str, ...]:
    """A line of the ranking."""
    assert verdict.chosen is not None
    score, gain = entry.score, log_gain(verdict.chosen.score, entry.score)
    ratio = "" if entry is verdict.chosen else f"{-gain.value:+.2f} ± {gain.error:.2f}"
    acceptance = by_position(score.rounds.acceptance_by_position)
    nats, tau = f"{score.mean_nats:.3f}", f"{score.rounds.tau:.2f}"
    return entry.reading.name, nats, ratio, tau, acceptance


def _terms(verdict: Verdict) -> str:
    details = verdict.details
    return (
        f"{details['prompts']} prompts, {details['positions']} positions, chains of "
        f"{details['chain_len']}.\nnats: cross entropy of the target's own token. "
        "log ratio: of nats to the\nchosen reading's, with its standard error; below 0 is better."
    )
