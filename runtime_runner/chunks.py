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


def plan_chunks(length: int, longest: int, min_prefill: int, max_rows: int) -> list[Chunk]:
    """Consecutive chunks that cover [0, length).

    Chunks of `min_prefill` to `longest` tokens go through `prefill`; what is too short for it goes
    through `target_verify` in pieces of at most `max_rows`.
    """
    chunks, start = [], 0
    while start < length:
        left = length - start
        few = min(left, longest) < min_prefill
        stop = start + min(left, longest, max_rows if few else longest)
        chunks.append(Chunk(start, stop, few))
        start = stop
    return chunks
