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
    """Consecutive chunks that cover [kept, length), where `kept` is 0 or as `KeptText` says.

    Chunks of exactly `longest` go through `prefill`, if it takes as few; the rest goes through
    `target_verify` in pieces of at most `max_rows`, since a row's bits do not depend on how it is
    cut: so a text that grows keeps them, until it fills another chunk.
    """
    whole = length - length % longest if longest >= min_prefill else 0
    chunks = [Chunk(at, at + longest, False) for at in range(0, whole, longest) if at >= kept]
    rest = range(max(kept, whole), length, max_rows)
    return chunks + [Chunk(at, min(at + max_rows, length), True) for at in rest]
