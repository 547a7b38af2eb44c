"""Cuts prompts into chunks for prefill."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions `start` to `stop` of a prompt.

    They run through `target_verify` with `few_rows`, else through `prefill`, followed by `padding`
    rows whose results are ignored.
    """

    start: int
    stop: int
    few_rows: bool
    padding: int = 0

    def __len__(self) -> int:
        return self.stop - self.start


def plan_chunks(
    length: int, longest: int, min_prefill: int, max_rows: int, kept: int = 0
) -> list[Chunk]:
    """Return consecutive chunks that cover [kept, length); the first may begin before `kept`.

    `prefill` runs as many rows as fill whole forwards of `target_verify`, which depends on the
    length alone, and `target_verify` runs the rest. So a growing conversation keeps its rows until
    it fills another forward. The cuts within either method change no row's bits. No chunk is
    shorter than `min_prefill`: where fewer rows remain, some cached rows are run again.
    """
    whole = prefilled_rows(length, longest, min_prefill, max_rows)
    start = kept if kept >= whole else max(0, whole - _fitting(whole - kept, longest, min_prefill))
    chunks = []
    while start < whole:
        later = -(-(whole - start) // longest) - 1  # chunks after this one
        size = min(longest, whole - start - later * min_prefill)
        chunks.append(Chunk(start, start + size, False))
        start += size
    rest = range(max(kept, whole), length, max_rows)
    return chunks + [Chunk(at, min(at + max_rows, length), True) for at in rest]


def plan_around(
    length: int,
    images: Sequence[tuple[int, int]],
    sizes: tuple[int, int],
    min_prefill: int,
    max_rows: int,
    kept: int = 0,
) -> list[Chunk]:
    """Return the chunks of a prompt with images, each given as [first position, end).

    Text follows the last image. `sizes` are the length that a chunk should not exceed and the one
    that it must not. `prefill` also runs all rows up to the end of the last image, and every image
    lies in one chunk, unless some of its rows are cached: the others may then run by themselves.
    Where fewer than `min_prefill` rows remain for a chunk, rows before them are run again; at the
    beginning of a prompt padding follows instead, whose slots are overwritten before any row reads
    them.
    """
    longest, limit = sizes
    whole = max(prefilled_rows(length, longest, min_prefill, max_rows), images[-1][1])
    at, chunks = min(kept, whole), list[Chunk]()
    while at < whole:
        stop = _stop_at_image(images, at, min(at + longest, whole), limit)
        start = max(0, min(at, stop - min_prefill))
        chunks.append(Chunk(start, stop, False, max(0, min_prefill - stop)))
        at = stop
    rest = range(max(kept, whole), length, max_rows)
    return chunks + [Chunk(here, min(here + max_rows, length), True) for here in rest]


def _stop_at_image(images: Sequence[tuple[int, int]], at: int, stop: int, limit: int) -> int:
    """Move the end `stop` of a chunk that begins at `at` out of an image: after it if the chunk
    stays within `limit` rows, else before it."""
    for first, end in images:
        if first < stop < end:
            return end if end - at <= limit else first
    return stop


def prefilled_rows(length: int, longest: int, min_prefill: int, max_rows: int) -> int:
    """Return how many of a prompt's first rows `prefill` runs.

    They fill whole forwards of `max_rows` or whole chunks of `longest` rows, and chunks of at least
    `min_prefill` rows can cover them.
    """
    whole = (length // size * size for size in (max_rows, longest))
    return max((n for n in whole if n and n == _fitting(n, longest, min_prefill)), default=0)


def _fitting(rows: int, longest: int, least: int) -> int:
    """Round `rows` up to what chunks of `least` to `longest` rows can cover."""
    return max(rows, -(-rows // longest) * least)
