"""Which pages of the caches have memory, where not all sequences can have their longest text.

A buffer of a cache keeps its addresses, and with them its shape, its recorded rounds and its
kernels. Only the pages with slots that a text uses have memory: a page is 2 MiB, the least
that a GPU maps. Neighbouring sequences share the page at their border.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from eagle_aot.common.errors import UnsupportedError

PAGE = 2 << 20
"""Bytes."""

STEP = 256
"""A text gets memory for so many tokens at a time."""

Pages = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Numbers of a buffer's pages, int64 [N]."""


class PageMemory(Protocol):
    """Memory in pages, `nbytes` so far, and the buffers that it is mapped to, by their numbers."""

    @property
    def nbytes(self) -> int: ...

    def reserve(self, pages: int) -> bool:
        """Have so many pages ready to map. Returns False where the memory is too small."""

    def map(self, buffer: int, pages: Pages) -> None:
        """Give memory to pages of a buffer that have none; `reserve` was called for them."""

    def unmap(self, buffer: int, pages: Pages) -> None:
        """Take the memory from pages of a buffer."""


@dataclass(frozen=True, slots=True)
class BufferShape:
    """A buffer [heads, sequences * slots, ...] with `entry` bytes a slot and head.

    A text of n tokens uses the first n slots of its sequence, all of them if there are fewer.
    """

    heads: int
    sequences: int
    slots: int
    entry: int

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
        return self.heads * self.sequences * self.slots * self.entry

    def ends(self, sequence: int, tokens: int) -> Pages:
        """Return the page after the last of so many tokens, for each head; its first page for 0."""
        first = (np.arange(self.heads) * self.sequences + sequence) * self.slots * self.entry
        used = min(tokens, self.slots) * self.entry
        return -(-(first + used) // PAGE) if used else first // PAGE

    def pages_between(self, sequence: int, before: int, after: int) -> Pages:
        """Return the pages that `after` tokens need and `before` of them did not; one of two heads
        is named twice."""
        ends = zip(self.ends(sequence, before), self.ends(sequence, after), strict=True)
        return np.concatenate([np.arange(first, end) for first, end in ends])


@dataclass
class Kind:
    """Buffers of one shape, by their numbers. `users` int32 [pages] counts who needs each page."""

    shape: BufferShape
    buffers: list[int] = field(default_factory=list)

    @cached_property
    def users(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.zeros(-(-self.shape.nbytes // PAGE), dtype=np.int32)

    def cost(self, sequence: int, before: int, after: int) -> int:
        """Return how many more pages a text needs that grows."""
        pages = self.fresh(self.shape.pages_between(sequence, before, after))
        return len(pages) * len(self.buffers)

    def fresh(self, pages: Pages) -> Pages:
        """Return those of some pages that have no users."""
        return np.unique(pages[self.users[pages] == 0])


class CachePages:
    """The memory of each sequence's text, in a number of tokens. All caches grow together."""

    def __init__(
        self,
        shapes: Sequence[BufferShape],
        memory: PageMemory,
        longest: int,
        margin: int,
        step: int = STEP,
    ) -> None:
        """`shapes` are those of the buffers, in the order of their numbers in `memory`.

        A text has at most `longest` slots, `margin` of them after its tokens: rows of drafts. It
        gets memory for `step` tokens at a time.
        """
        self._memory, self._longest, self._margin, self._step = memory, longest, margin, step
        kinds: dict[BufferShape, Kind] = {}
        for number, shape in enumerate(shapes):
            kinds.setdefault(shape, Kind(shape)).buffers.append(number)
        self._kinds = list(kinds.values())
        self._tokens: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the device has given so far."""
        return self._memory.nbytes

    def holds(self, sequence: int) -> bool:
        """Whether a sequence has memory."""
        return sequence in self._tokens

    def borders(self, sequence: int) -> bool:
        """Whether a neighbour has memory, so that a text takes less here than elsewhere."""
        return self.holds(sequence - 1) or self.holds(sequence + 1)

    def grow(self, sequence: int, length: int) -> bool:
        """Give a sequence memory for a text of `length` tokens, unless it has it.

        Returns False, and gives none, where the memory is too small.
        """
        before = self._tokens.get(sequence, 0)
        after = self._slots(length)
        if after <= before:
            return True
        if not self._memory.reserve(sum(k.cost(sequence, before, after) for k in self._kinds)):
            return False
        for kind, pages in self._between(sequence, before, after):
            fresh = kind.fresh(pages)
            np.add.at(kind.users, pages, 1)
            for buffer in kind.buffers if len(fresh) else ():
                self._memory.map(buffer, fresh)
        self._tokens[sequence] = after
        return True

    def shrink(self, sequence: int, length: int = 0) -> None:
        """Take the memory that a text of `length` tokens does not need from a sequence; all of it
        for 0."""
        before, after = self._tokens.get(sequence, 0), self._slots(length) if length else 0
        if after >= before:
            return
        for kind, pages in self._between(sequence, after, before):
            np.subtract.at(kind.users, pages, 1)
            unused = kind.fresh(pages)
            for buffer in kind.buffers if len(unused) else ():
                self._memory.unmap(buffer, unused)
        if after:
            self._tokens[sequence] = after
        else:
            del self._tokens[sequence]

    def grow_evenly(self, sequences: Sequence[int]) -> None:
        """Give sequences memory for texts of one length, as long as it can be."""
        step = self._longest if len(sequences) == 1 else self._step
        for length in range(step, self._longest + step, step):
            if not all(self.grow(sequence, length) for sequence in sequences):
                return

    def most_pages(self, length: int) -> int:
        """Return how many pages a sequence with a text of `length` tokens needs alone, at most."""
        slots = self._slots(length)
        return max(
            sum(
                len(kind.buffers) * len(np.unique(kind.shape.pages_between(s, 0, slots)))
                for kind in self._kinds
            )
            for s in range(self._kinds[0].shape.sequences)
        )

    def _slots(self, length: int) -> int:
        return min(-(-(length + self._margin) // self._step) * self._step, self._longest)

    def _between(self, sequence: int, before: int, after: int) -> Iterator[tuple[Kind, Pages]]:
        for kind in self._kinds:
            yield kind, kind.shape.pages_between(sequence, before, after)


def no_memory(length: int) -> UnsupportedError:
    """Return the error of a text of `length` tokens that does not fit what others have left."""
    return UnsupportedError(
        f"the GPU has no memory left for caches of {length} tokens: end other programs there, or "
        "ask for fewer tokens"
    )
