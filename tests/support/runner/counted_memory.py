"""Memory in pages that are counted, not there."""

from eagle_aot.runtime_runner.program.cache_pages import PAGE, Pages


class CountedMemory:
    """Pages that are mapped, by buffer."""

    def __init__(self, buffers: int, capacity: int) -> None:
        self.capacity = capacity
        self.mapped: list[set[int]] = [set() for _ in range(buffers)]

    @property
    def nbytes(self) -> int:
        return self.used() * PAGE

    def used(self) -> int:
        return sum(map(len, self.mapped))

    def reserve(self, pages: int) -> bool:
        return self.used() + pages <= self.capacity

    def map(self, buffer: int, pages: Pages) -> None:
        assert not self.mapped[buffer] & set(pages.tolist()), "mapped twice"
        self.mapped[buffer] |= set(pages.tolist())
        assert self.used() <= self.capacity, "more than there is"

    def unmap(self, buffer: int, pages: Pages) -> None:
        assert self.mapped[buffer] >= set(pages.tolist()), "unmapped twice"
        self.mapped[buffer] -= set(pages.tolist())
