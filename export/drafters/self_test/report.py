"""A self-test for a reader."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from eagle_aot.common.self_test import by_position
from eagle_aot.export.drafters.self_test.comparison import log_gain

if TYPE_CHECKING:
    from eagle_aot.export.drafters.self_test.verdict import Entry, Ranking


def show_ranking(found: "Ranking", console: Console) -> None:
    """The entries as a table, and what its columns mean."""
    console.print(ranking(found))
    console.print(_terms(found), markup=False, highlight=False)


def ranking(found: "Ranking") -> Table:
    """Best first."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)  # 80 columns wide at most
    for header in ("reading", "nats", "log ratio", "tau", "acceptance"):
        table.add_column(header, justify="left" if header == "reading" else "right", no_wrap=True)
    for entry in found.entries:
        row = row_of(entry, found)
        table.add_row(*row, style="bold" if entry is found.chosen else None)
    return table


def row_of(entry: "Entry", found: "Ranking") -> tuple[str, ...]:
    """A line of the ranking."""
    score, gain = entry.score, log_gain(found.chosen.score, entry.score)
    ratio = "" if entry is found.chosen else f"{-gain.value:+.2f} ± {gain.error:.2f}"
    acceptance = by_position(score.rounds.acceptance_by_position)
    nats, tau = f"{score.mean_nats:.3f}", f"{score.rounds.tau:.2f}"
    return entry.reading.name, nats, ratio, tau, acceptance


def _terms(found: "Ranking") -> str:
    details = found.details
    return (
        f"{details['prompts']} prompts, {details['positions']} positions, chains of "
        f"{details['chain_len']}.\nnats: cross entropy of the target's own token. "
        "log ratio: of nats to the\nchosen reading's, with its standard error; below 0 is better."
    )
