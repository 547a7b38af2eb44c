"""How a prompt is cut for prefilling."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions `start` to `stop` of a prompt; with `few_rows` they go through `target_verify`."""

    start: int
    stop: int
    few_rows: bool

    def __len__(self) -> int:
        return self.stop - self.start


def plan_chunks(
    length: int, longest: int, min_prefill: int, max_rows: int, kept: int = 0
) -> list[Chunk]:
    """Consecutive chunks that cover [kept, length), where `kept` is 0 or as `KeptText` says.

    Through `prefill` go as many chunks of `longest` as there are, then of its halves; the rest goes
    through `target_verify` in pieces of at most `max_rows`, since a row's bits do not depend on how
    it is cut: so a text that grows keeps them, until it fills another chunk.
    """
    chunks, start = [], 0
    for size in prefill_sizes(longest, min_prefill, max_rows):
        while length - start >= size:
            chunks.append(Chunk(start, start + size, False))
            start += size
    rest = range(max(kept, start), length, max_rows)
    new = [chunk for chunk in chunks if chunk.start >= kept]
    return new + [Chunk(at, min(at + max_rows, length), True) for at in rest]


def prefill_sizes(longest: int, min_prefill: int, max_rows: int) -> Iterator[int]:
    """Of its chunks, descending; no half is less than two forwards of `target_verify` take."""
    size = longest
    while size >= min_prefill:
        yield size
        size //= 2
        if size < 2 * max_rows:
            return
