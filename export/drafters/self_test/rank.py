"""Which of a head's readings drafts best."""

from collections.abc import Callable, Iterable

from eagle_aot.export.drafters.self_test.comparison import is_better, is_enough
from eagle_aot.export.drafters.self_test.readings import R, control_of
from eagle_aot.export.drafters.self_test.score import Score
from eagle_aot.export.drafters.self_test.verdict import Entry, how_measured, judge
from eagle_aot.export.drafters.verdict import Verdict, unknown


def rank_readings(
    chosen: R, others: Iterable[R], texts: int, score: Callable[[R], Score]
) -> Verdict:
    """Every reading on so many texts. A control is scored where one drafts better than the chosen
    one, whose own always is."""
    if not texts:
        return unknown("no prompt has an answer of two tokens within the context")
    measured = score(chosen)
    if not is_enough(measured):
        return unknown(f"{len(measured.labels)} positions are too few to tell")
    found = Entry(reading=chosen, score=measured, control=score(control_of(chosen)))
    ranked = [_entry(reading, measured, score) for reading in others]
    return judge(found, ranked, how_measured(measured, texts))


def _entry(reading: R, chosen: Score, score: Callable[[R], Score]) -> Entry:
    found = score(reading)
    if not is_better(chosen, found):
        return Entry(reading=reading, score=found)
    return Entry(reading=reading, score=found, control=score(control_of(reading)))
