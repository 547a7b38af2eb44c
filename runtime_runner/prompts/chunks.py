"""How a prompt is cut for prefilling."""

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


def prefilled_rows(length: int, longest: int, min_prefill: int, max_rows: int) -> int:
    """How many rows of a prompt, its first ones, are for `prefill`: those that fill forwards of
    `max_rows`, or else chunks of `longest`, and that chunks of `min_prefill` and more can cover."""
    whole = (length // size * size for size in (max_rows, longest))
    return max((n for n in whole if n and n == _fitting(n, longest, min_prefill)), default=0)


def _fitting(rows: int, longest: int, least: int) -> int:
    """So many rows, or as few more as chunks of `least` to `longest` rows need."""
    return max(rows, -(-rows // longest) * least)
