"""Reused rows against those of a cache that remembers how each of its rows was computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk, plan_chunks
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.engine.sequence_pool import CachedPrefix
from eagle_aot.targets.step import flat_slots, longest_chunk, ring_slots
from support.runner.logging_executor import CONSTANTS, LoggingExecutor

LONGEST, LEAST, ROWS, TAIL = 8, 5, 4, 3
FINER = 3, 2  # the least and the rows of another artifact
FLAT = 10**6

Row = tuple[int, tuple[int, ...], str]
"""Position, the tokens up to there, and what computed it."""


@dataclass
class Cache:
    """A ring of `slots`; each row reads the last `window` of them."""

    slots: int
    window: int
    plan: Callable[..., list[Chunk]]
    rows: dict[int, Row] = field(default_factory=dict)

    def run(self, text: Sequence[int], chunks: Sequence[Chunk]) -> None:
        """Run chunks: all rows of a forward are stored before one reads."""
        for chunk in chunks:
            how = "few rows" if chunk.few_rows else "prefill"
            for p in range(chunk.start, chunk.stop):
                self.rows[p % self.slots] = (p, tuple(text[: p + 1]), how)
            for p in range(chunk.start, chunk.stop):
                self.check(text, p)

    def check(self, text: Sequence[int], position: int) -> None:
        """Check that a row reads what running all of a text from its beginning gives."""
        fresh = dict(methods(self.plan(len(text))))
        for p in range(max(0, position - self.window + 1), position + 1):
            assert self.rows[p % self.slots] == (p, tuple(text[: p + 1]), fresh[p])

    def copy(self, source: "Cache", count: int) -> None:
        """Copy the first rows of another cache, or what lies in their slots."""
        for p in range(count):
            self.rows[p % self.slots] = source.rows[p % self.slots]

    def decode(self, text: Sequence[int], first: int) -> None:
        """Store the rows of an answer, and after it drafts that were not accepted."""
        for p in range(first, len(text) + TAIL):
            path = tuple([*text, *[-1] * TAIL][: p + 1])
            self.rows[p % self.slots] = (p, path, "few rows")


def plan(length: int, kept: int = 0) -> list[Chunk]:
    return plan_chunks(length, LONGEST, LEAST, ROWS, kept)


def plan_finer(length: int, kept: int = 0) -> list[Chunk]:
    return plan_chunks(length, LONGEST, *FINER, kept)


def methods(fresh: Sequence[Chunk]) -> list[tuple[int, str]]:
    """Return what computes each row of a text that is run from its beginning."""
    result = []
    for chunk in fresh:
        how = "few rows" if chunk.few_rows else "prefill"
        result += [(p, how) for p in range(chunk.start, chunk.stop)]
    return result


@settings(max_examples=500, deadline=None)
@given(st.data(), st.booleans(), st.sampled_from([plan, plan_finer]))
def test_reused_rows_are_those_of_a_fresh_run(
    data: st.DataObject, sliding: bool, plan: Callable[..., list[Chunk]]
) -> None:
    """For texts that continue another one, from its end or its middle, or begin anew, in the same
    cache or in another one."""
    window, rewind = (5, 12) if sliding else (FLAT, FLAT)
    caches = [Cache(slots=window + rewind, window=window, plan=plan) for _ in range(3)]
    kept_texts, texts = [CachedPrefix()] * 3, [[0]] * 3
    tokens, batch_size = st.integers(0, 1), st.integers(0, 2)
    for _ in range(data.draw(st.integers(1, 8))):
        source, place = data.draw(batch_size), data.draw(batch_size)
        text, kept_text, cache = texts[source], kept_texts[source], caches[place]
        shared = data.draw(st.integers(0, len(text)))
        prompt = text[:shared] + data.draw(st.lists(tokens, min_size=1, max_size=14))
        whole = plan(len(prompt))
        kept = kept_text.match(prompt, partial(plan, len(prompt)), rewind, window % FLAT)
        assert 0 <= kept < len(prompt)
        assert kept == 0 or kept < shared_length(text, prompt)
        if source != place:
            cache.copy(caches[source], kept)
        cache.run(prompt, plan(len(prompt), kept))
        texts[place] = prompt + data.draw(st.lists(tokens, min_size=1, max_size=14))
        cache.decode(texts[place][:-1], len(prompt))
        written = len(texts[place]) + TAIL
        kept_texts[place] = kept_text.followed_by(texts[place], whole, kept, written)


def shared_length(one: list[int], other: list[int]) -> int:
    return max(n for n in range(min(len(one), len(other)) + 1) if one[:n] == other[:n])


def test_a_conversation_runs_its_new_rows() -> None:
    """An answer's rows are reused as well, until it fills a forward, which is run again once."""
    first = CachedPrefix().followed_by([1, 2, 3, 4], plan(3), 0, 6)
    assert first.match([1, 2, 3, 4, 5, 6], planned(6), FLAT) == 3
    assert first.match([1, 2, 3, 4, 5, 6, 7, 8, 9], planned(9), FLAT) == 0
    second = first.followed_by([*range(1, 13)], plan(9), 0, 15)
    assert second.match([*range(1, 12)], planned(11), FLAT) == 10
    assert second.match([*range(1, 15)], planned(14), FLAT) == 8
    assert second.match([1, 2, 3], planned(3), FLAT) == 0


def test_a_text_that_differs_within_a_chunk_reuses_the_rows_before() -> None:
    kept = CachedPrefix().followed_by([*range(20)], plan(18), 0, 20)
    assert kept.match([*range(13), -1, *range(14, 18)], planned(18), FLAT) == 12
    assert kept.match([*range(10), -1], planned(11), FLAT) == 8


def test_rows_that_the_drafter_observed_are_counted_separately() -> None:
    """After a text with drafts, one without, and one with drafts again."""
    drafted = CachedPrefix().followed_by([*range(20)], plan(18), 0, 20, drafter_rows=19)
    plain = drafted.followed_by([*range(12), 0, 0], plan(13), 11, 17)
    again = plain.followed_by([*range(12), 0, 0], plan(13), 11, 17, drafter_rows=13)
    for kept, rows in ((drafted, 11), (plain, 11), (again, 12)):
        assert kept.match([*range(12), 0, 1], planned(14), FLAT, for_drafter=True) == rows
    assert plain.match([*range(12), 0, 1], planned(14), FLAT) == 12
    anew = drafted.followed_by([*range(20)], plan(18), 0, 20)
    assert anew.match([*range(18)], planned(18), FLAT, for_drafter=True) == 0


def planned(length: int) -> Callable[[int], list[Chunk]]:
    return partial(plan, length)


def test_overwritten_rows_of_a_ring_are_not_reused() -> None:
    kept = CachedPrefix().followed_by([*range(7)], plan(3), 0, 10)
    assert kept.match([*range(5)], planned(5), rewind=6) == 4
    assert kept.match([*range(5)], planned(5), rewind=5) == 0
    assert kept.match([*range(5)], planned(5), rewind=4, window=6) == 4, "it is not full yet"
    assert kept.match([*range(5)], planned(5), rewind=3, window=6) == 0
    again = kept.followed_by([*range(5)], plan(5), 4, 8)
    assert again.written == 10, "what an earlier text overwrote is still missing"
    assert kept.followed_by([*range(5)], plan(5), 0, 8).written == 8


def test_the_runners_ring_is_as_long_as_the_targets() -> None:
    target = TargetMethods(LoggingExecutor(), CONSTANTS)
    window = CONSTANTS.sliding_window
    assert flat_slots(CONSTANTS.max_seq_len) == CONSTANTS.flat_slots
    assert target.rewind == longest_chunk(window) == ring_slots(window) - window
    assert target.window == window
    short = replace(CONSTANTS, sliding_window=1024, max_prefill_chunk=256)
    rewind = TargetMethods(LoggingExecutor(), short).rewind
    assert rewind == longest_chunk(1024, 256) == ring_slots(1024, 256) - 1024
