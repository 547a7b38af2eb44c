"""What a self-test prints."""

from io import StringIO

import torch
from rich.console import Console

from eagle_aot.export.self_test.score import RoundCounts, Score
from eagle_aot.export.self_test.text import Reading
from eagle_aot.export.self_test.verdict import Entry, Verdict, unknown


def entry(name: str, reached: tuple[int, ...], accepted: tuple[int, ...]) -> Entry:
    """Return the entry of a reading whose nats are all 1."""
    ids, yes = torch.arange(16), torch.ones(16, 4, dtype=torch.bool)
    score = Score(yes, yes.float(), yes, ids, RoundCounts(10, 20, reached, accepted))
    return Entry(reading=Reading(name=name, target_ids=ids), score=score)


def test_drafts_that_were_not_reached_have_their_column() -> None:
    chosen = entry("as resolved", (10, 8, 6, 2), (8, 6, 2, 1))
    other = entry("halves swapped", (10, 1, 0, 0), (1, 0, 0, 0))
    output = StringIO()
    verdict = Verdict(kind="fits", message="", entries=(chosen, other), chosen=chosen)
    Console(file=output, width=80).print(verdict.table(chosen))
    _, first, second = output.getvalue().splitlines()
    assert first.split()[-4:] == ["0.80", "0.75", "0.33", "0.50"]
    assert second.split()[-4:] == ["0.10", "0.00", "-", "-"]
    assert first.index("0.80") == second.index("0.10")


def test_a_file_that_is_quoted_cannot_write_to_a_terminal() -> None:
    output = StringIO()
    unknown("a\x1b]0;owned\x07\x1b[2Jb").announce(Console(file=output, width=80))
    assert output.getvalue().endswith("reads the target: a\ufffd]0;owned\ufffd\ufffd[2Jb\n")
