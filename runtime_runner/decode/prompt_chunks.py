"""How a prompt is cut for prefilling."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions `start` to `stop` of a prompt; with `few_rows` they go through `target_verify`, or
    else through `prefill`, with `padding` rows behind them that mean nothing."""

    start: int
    stop: int
    few_rows: bool
    padding: int = 0

    def __len__(self) -> int:
        return self.stop - self.start


def plan_chunks(
    length: int, longest: int, min_prefill: int, max_rows: int, kept: int = 0
) -> list[Chunk]:
    """Consecutive chunks that cover [kept, length); the first may begin before `kept`.

    Through `prefill` go as many rows as fill forwards of `target_verify`, which follows from the
    length alone, and the rest through `target_verify`: so a text that grows keeps its rows, until
    it fills another. How either are cut changes no row's bits. No chunk is shorter than
    `min_prefill`: where fewer rows are left, some that are kept are run again.
    """
    whole = prefilled_rows(length, longest, min_prefill, max_rows)
    start = kept if kept >= whole else max(0, whole - _fitting(whole - kept, longest, min_prefill))
    chunks = []
    while start < whole:
        later = -(-(whole - start) // longest) - 1  # chunks behind this one
        size = min(longest, whole - start - later * min_prefill)
        chunks.append(Chunk(start, start + size, False))
        start += size
    rest = range(max(kept, whole), length, max_rows)
    return chunks + [Chunk(at, min(at + max_rows, length), True) for at in rest]


def plan_around(
    length: int,
    pictures: Sequence[tuple[int, int]],
    sizes: tuple[int, int],
    min_prefill: int,
    max_rows: int,
    kept: int = 0,
) -> list[Chunk]:
    """The same of a prompt with `pictures`, each from its first position up to behind its last, and
    text behind the last one. `sizes` are how long a chunk should be at most, and may.

    Through `prefill` go all rows up to the last picture's as well, and each picture lies whole in
    one chunk, unless rows of it are kept: the others may be run by themselves. Where fewer rows
    than `min_prefill` are left for a chunk, others before them are run again; at a text's beginning
    there are none, and padding follows them, whose slots are written again before they are seen.
    """
    longest, room = sizes
    whole = max(prefilled_rows(length, longest, min_prefill, max_rows), pictures[-1][1])
    at, chunks = min(kept, whole), list[Chunk]()
    while at < whole:
        stop = _beside(pictures, at, min(at + longest, whole), room)
        start = max(0, min(at, stop - min_prefill))
        chunks.append(Chunk(start, stop, False, max(0, min_prefill - stop)))
        at = stop
    rest = range(max(kept, whole), length, max_rows)
    return chunks + [Chunk(here, min(here + max_rows, length), True) for here in rest]


def _beside(pictures: Sequence[tuple[int, int]], at: int, stop: int, room: int) -> int:
    """Where a chunk from `at` on ends that would end at `stop`: behind a picture that lies there if
    that leaves `room` rows at most, or else in front of it."""
    for first, behind in pictures:
        if first < stop < behind:
            return behind if behind - at <= room else first
    return stop


def prefilled_rows(length: int, longest: int, min_prefill: int, max_rows: int) -> int:
    """How many rows of a prompt, its first ones, are for `prefill`: those that fill forwards of
    `max_rows`, or else chunks of `longest`, and that chunks of `min_prefill` and more can cover."""
    whole = (length // size * size for size in (max_rows, longest))
    return max((n for n in whole if n and n == _fitting(n, longest, min_prefill)), default=0)


def _fitting(rows: int, longest: int, least: int) -> int:
    """So many rows, or as few more as chunks of `least` to `longest` rows need."""
    return max(rows, -(-rows // longest) * least)
