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
    length: int, longest: int, min_prefill: int, max_rows: int, reused: int = 0, block: int = 0
) -> list[Chunk]:
    """Return consecutive chunks that cover [reused, length); the first may begin before `reused`.

    `prefill` runs as many rows as fill whole forwards of `target_verify`, or whole blocks of
    `block` rows where that is not 0: this depends on the length alone. `target_verify` runs the
    rest, so a growing conversation keeps its rows until it fills another forward. The cuts within
    either method change no row's bits. No chunk is shorter than `min_prefill`: where fewer rows
    remain, some cached rows are run again.
    """
    end = prefilled_rows(length, longest, min_prefill, block or max_rows)
    start = reused
    if reused < end:
        start = max(0, end - _coverable(end - reused, longest, min_prefill))
    chunks = []
    while start < end:
        later = -(-(end - start) // longest) - 1  # chunks after this one
        size = min(longest, end - start - later * min_prefill)
        chunks.append(Chunk(start, start + size, False))
        start += size
    return chunks + _few_rows(max(reused, end), length, max_rows)


def plan_around(
    length: int,
    images: Sequence[tuple[int, int]],
    sizes: tuple[int, int],
    min_prefill: int,
    max_rows: int,
    reused: int = 0,
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
    end = max(prefilled_rows(length, longest, min_prefill, max_rows), images[-1][1])
    position, chunks = min(reused, end), list[Chunk]()
    while position < end:
        stop = _stop_at_image(images, position, min(position + longest, end), limit)
        start = max(0, min(position, stop - min_prefill))
        chunks.append(Chunk(start, stop, False, max(0, min_prefill - stop)))
        position = stop
    return chunks + _few_rows(max(reused, end), length, max_rows)


def _few_rows(start: int, length: int, max_rows: int) -> list[Chunk]:
    """Return the chunks of `target_verify` that cover [start, length)."""
    starts = range(start, length, max_rows)
    return [Chunk(first, min(first + max_rows, length), True) for first in starts]


def _stop_at_image(images: Sequence[tuple[int, int]], start: int, stop: int, limit: int) -> int:
    """Move the end of the chunk [start, stop) out of an image: after it if the chunk stays within
    `limit` rows, else before it."""
    for first, end in images:
        if first < stop < end:
            return end if end - start <= limit else first
    return stop


def prefilled_rows(length: int, longest: int, min_prefill: int, block: int) -> int:
    """Return how many of a prompt's first rows `prefill` runs.

    They fill whole blocks or whole chunks of `longest` rows, and chunks of at least
    `min_prefill` rows can cover them.
    """
    whole = (length // size * size for size in (block, longest))
    return max((n for n in whole if n and n == _coverable(n, longest, min_prefill)), default=0)


def _coverable(rows: int, longest: int, least: int) -> int:
    """Round `rows` up to a number that chunks of `least` to `longest` rows can cover."""
    return max(rows, -(-rows // longest) * least)
