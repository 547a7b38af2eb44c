"""A self-test for a reader."""

from io import StringIO

import torch
from rich.console import Console

from eagle_aot.export.drafters.eagle3.self_test.reading import Reading
from eagle_aot.export.drafters.self_test.report import ranking
from eagle_aot.export.drafters.self_test.score import Rounds, Score
from eagle_aot.export.drafters.self_test.verdict import Entry, Ranking
from eagle_aot.export.drafters.verdict import announce, unknown


def entry(name: str, reached: tuple[int, ...], accepted: tuple[int, ...]) -> Entry:
    """A reading whose nats are all 1."""
    ids, yes = torch.arange(16), torch.ones(16, 4, dtype=torch.bool)
    reading = Reading(
        name=name,
        remedy=None,
        tap_layers=(1,),
        target_ids=ids,
        norm_output=False,
        norm_before_residual=False,
    )
    rounds = Rounds(10, 20, reached, accepted)
    return Entry(reading=reading, score=Score(yes, yes.float(), yes, ids, rounds))


def test_drafts_that_were_not_reached_have_their_column() -> None:
    chosen = entry("as resolved", (10, 8, 6, 2), (8, 6, 2, 1))
    other = entry("halves swapped", (10, 1, 0, 0), (1, 0, 0, 0))
    output = StringIO()
    verdict = Ranking(kind="fits", message="", entries=(chosen, other), chosen=chosen)
    Console(file=output, width=80).print(ranking(verdict))
    _, first, second = output.getvalue().splitlines()
    assert first.split()[-4:] == ["0.80", "0.75", "0.33", "0.50"]
    assert second.split()[-4:] == ["0.10", "0.00", "-", "-"]
    assert first.index("0.80") == second.index("0.10")


def test_a_file_that_is_quoted_cannot_write_to_a_terminal() -> None:
    output = StringIO()
    announce(unknown("a\x1b]0;owned\x07\x1b[2Jb"), Console(file=output, width=80))
    assert output.getvalue().endswith("reads the target: a\ufffd]0;owned\ufffd\ufffd[2Jb\n")
