"""Memory in pages for the texts of a toy model, which are lost with it."""

from collections.abc import Iterable, Mapping
from typing import Any

from eagle_aot.runtime_runner.program.cache_pages import PAGE, BufferShape, CachePages, Pages
from support.runner.counted_memory import CountedMemory
from support.runner.toy import MAX_ROWS, TAIL, ToyTarget

SLOTS = 400
ENTRY = PAGE // 7
"""Bytes of a slot: pages begin within slots, and neighbouring sequences share some."""


class TextMemory(CountedMemory):
    """As many pages of one buffer as texts may take together."""

    def __init__(self, sequences: int, capacity: int) -> None:
        super().__init__(1, capacity)
        self.shape = BufferShape(2, sequences, SLOTS, ENTRY)
        self.texts: list[Text] = [Text(self, s) for s in range(sequences)]

    def unmap(self, buffer: int, pages: Pages) -> None:
        super().unmap(buffer, pages)
        for text in self.texts:
            text.lose()

    def pages_of(self, sequence: int, slot: int) -> set[int]:
        """Return the pages of a slot, in both heads."""
        shape = self.shape
        starts = [((h * shape.sequences + sequence) * SLOTS + slot) * ENTRY for h in range(2)]
        return {
            p for start in starts for p in range(start // PAGE, (start + ENTRY - 1) // PAGE + 1)
        }


class Text(dict[int, int]):
    """The tokens in the slots of a sequence, which need memory."""

    def __init__(self, memory: TextMemory, sequence: int) -> None:
        super().__init__()
        self._memory, self._sequence = memory, sequence

    def __setitem__(self, slot: int, token: int) -> None:
        assert self._memory.mapped[0] >= self._memory.pages_of(self._sequence, slot), "no memory"
        super().__setitem__(slot, token)

    def update(self, tokens: Mapping[int, int] | Iterable[tuple[int, int]], **_: Any) -> None:  # type: ignore[override]
        for slot, token in dict(tokens).items():
            self[slot] = token

    def lose(self) -> None:
        """Forget what is in slots without memory."""
        for slot in list(self):
            if not self._memory.mapped[0] >= self._memory.pages_of(self._sequence, slot):
                del self[slot]


def paged(target: ToyTarget, capacity: int) -> CachePages:
    """Let the texts of a target share so many pages, or those of the longest text if it needs
    more."""
    memory = TextMemory(len(target.slots), capacity)
    pages = CachePages([memory.shape], memory, SLOTS, MAX_ROWS + TAIL, step=16)
    memory.capacity = max(capacity, pages.most_pages(SLOTS))
    target.slots = list(memory.texts)
    return pages
