"""Memory for texts of any length, against a count of the bytes that they use."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.program.cache_pages import PAGE, BufferShape, CachePages
from support.runner.counted_memory import CountedMemory

SEQUENCES, SLOTS, MARGIN, STEP = 4, 60, 5, 8


def pages_of(shape: BufferShape, slots: dict[int, int]) -> set[int]:
    """Return the pages of the first slots of each sequence, in every head."""
    size = shape.slots * shape.entry
    starts = [(h * shape.sequences + s, n) for h in range(shape.heads) for s, n in slots.items()]
    return {
        page
        for region, n in starts
        for page in range(
            region * size // PAGE, -(-(region * size + min(n, shape.slots) * shape.entry) // PAGE)
        )
    }


def slots_of(length: int) -> int:
    return min(-(-(length + MARGIN) // STEP) * STEP, SLOTS)


shapes = st.lists(
    st.builds(
        BufferShape, st.integers(1, 3), st.just(SEQUENCES), st.sampled_from([SLOTS, 17]),
        st.sampled_from([PAGE // 11, PAGE // 64, PAGE, PAGE * 3 // 2]),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(deadline=None)
@given(shapes=shapes, share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_pages_are_those_that_texts_use(shapes: list[BufferShape], share: float, seed: int) -> None:
    """100 examples of 300 operations: none is leaked, lost or counted twice."""
    memory, draw = CountedMemory(len(shapes), 10**6), random.Random(seed)
    pages = CachePages(shapes, memory, SLOTS, MARGIN, STEP)
    memory.capacity = int(share * sum(-(-shape.nbytes // PAGE) for shape in shapes))
    held: dict[int, int] = {}
    for _ in range(300):
        sequence, length = draw.randrange(SEQUENCES), draw.randrange(SLOTS - MARGIN)
        if draw.random() < 0.5:
            wanted = held | {sequence: max(slots_of(length), held.get(sequence, 0))}
            fits = sum(len(pages_of(s, wanted)) for s in shapes) <= memory.capacity
            assert pages.grow(sequence, length) == fits
            held = wanted if fits else held
        else:
            pages.shrink(sequence, length)
            left = min(slots_of(length) if length else 0, held.pop(sequence, 0))
            held |= {sequence: left} if left else {}
        assert memory.mapped == [pages_of(shape, held) for shape in shapes]
        assert all(pages.holds(s) == (s in held) for s in range(SEQUENCES))


@given(shapes=shapes, length=st.integers(0, SLOTS))
def test_most_pages_is_the_need_of_the_worst_sequence(
    shapes: list[BufferShape], length: int
) -> None:
    needs = [
        sum(len(pages_of(shape, {s: slots_of(length)})) for shape in shapes)
        for s in range(SEQUENCES)
    ]
    memory = CountedMemory(len(shapes), 0)
    assert CachePages(shapes, memory, SLOTS, MARGIN, STEP).most_pages(length) == max(needs)


@pytest.mark.parametrize("capacity", [1, 2, 5, 6, 100])
def test_texts_of_one_length(capacity: int) -> None:
    """Two sequences get the same number of pages, of eight each."""
    shape = BufferShape(1, SEQUENCES, 64, PAGE // 8)
    memory = CountedMemory(1, capacity)
    pages = CachePages([shape], memory, 64, 0, 8)
    pages.grow_evenly([0, 2])
    counts = [sum(page // 8 == s for page in memory.mapped[0]) for s in (0, 2)]
    assert sum(counts) <= capacity and max(counts) - min(counts) <= 1
    assert sum(counts) == min(capacity, 16)


def test_one_text_gets_all() -> None:
    shape = BufferShape(1, SEQUENCES, 64, PAGE // 8)
    memory = CountedMemory(1, 8)
    CachePages([shape], memory, 64, 0, 8).grow_evenly([1])
    assert memory.mapped == [set(range(8, 16))]


def test_bounds_of_large_buffers_are_exact() -> None:
    """Byte offsets leave 32 bits."""
    shape = BufferShape(4, 128, 32864, 1024)
    starts, ends = shape.ends(127, 0), shape.ends(127, 32864)
    assert (ends[-1] - 1) * PAGE < shape.nbytes <= ends[-1] * PAGE
    assert starts.dtype == np.int64
