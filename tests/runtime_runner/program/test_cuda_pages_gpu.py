"""Memory in pages on a GPU: what is mapped keeps its contents, and what is not costs nothing."""

import gc

import numpy as np
import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.program.cache_pages import PAGE, BufferShape, CachePages

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from eagle_aot.runtime_runner.program.cuda_pages import CudaPages

GPU = torch.device("cuda", 0)
SHAPE = BufferShape(heads=4, sequences=16, slots=8200, entry=512)
MARGIN = 96


def slots_of(buffer: Tensor, sequence: int) -> Tensor:
    """Return a sequence's slots of a buffer, uint8 [heads, slots, entry]."""
    shape = SHAPE.heads, SHAPE.sequences, SHAPE.slots, SHAPE.entry
    return buffer.view(shape)[:, sequence]


@pytest.fixture
def memory() -> CudaPages:
    torch.zeros(1, device=GPU)
    return CudaPages(GPU, 200)


def test_texts_keep_what_they_wrote(memory: CudaPages) -> None:
    buffers = [memory.add(SHAPE, MARGIN) for _ in range(2)]
    pages = CachePages([SHAPE, SHAPE], memory, SHAPE.slots, MARGIN)
    draw, held = np.random.default_rng(0), dict[int, int]()
    for step in range(300):
        sequence, length = int(draw.integers(16)), int(draw.integers(1, 8000))
        if draw.random() < 0.4:
            pages.shrink(sequence)
            held.pop(sequence, None)
        elif pages.grow(sequence, max(length, held.get(sequence, 0))):
            held[sequence] = max(length, held.get(sequence, 0))
            for i, buffer in enumerate(buffers):
                slots_of(buffer, sequence)[:, : held[sequence]] = (7 * sequence + i) % 256
        if step % 10 == 0:
            for s, count in held.items():
                for i, buffer in enumerate(buffers):
                    assert bool((slots_of(buffer, s)[:, :count] == (7 * s + i) % 256).all())
    assert held, "nothing was compared"


def test_padding_may_be_written_in_any_sequence(memory: CudaPages) -> None:
    buffer = memory.add(SHAPE, MARGIN)
    for sequence in range(SHAPE.sequences):
        slots_of(buffer, sequence)[:, -MARGIN:] = 1
        slots_of(buffer, sequence)[:, :MARGIN] = 1
        assert bool((slots_of(buffer, sequence)[:, -MARGIN:] == 1).all())


def test_a_recorded_graph_writes_to_memory_that_is_mapped_later(memory: CudaPages) -> None:
    buffer = memory.add(SHAPE, MARGIN)
    pages = CachePages([SHAPE], memory, SHAPE.slots, MARGIN)
    index, value = torch.zeros(1, dtype=torch.int64, device=GPU), torch.ones(1, device=GPU)
    graph = torch.cuda.CUDAGraph()
    rows = slots_of(buffer, 3)[0, :, 0]
    rows.index_copy_(0, index, value.to(torch.uint8))
    with torch.cuda.graph(graph):
        rows.index_copy_(0, index, value.to(torch.uint8))
    assert pages.grow(3, 8000)
    index.fill_(7777)
    value.fill_(5)
    graph.replay()
    assert int(rows[7777]) == 5


def test_memory_is_taken_when_it_is_mapped_and_given_back_in_the_end() -> None:
    torch.zeros(1, device=GPU)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info(GPU)[0]
    memory = CudaPages(GPU, 1000)
    shape = BufferShape(heads=8, sequences=128, slots=32864, entry=1024)
    buffer = memory.add(shape, MARGIN)
    pages = CachePages([shape], memory, shape.slots, MARGIN)
    idle = before - torch.cuda.mem_get_info(GPU)[0]
    assert idle < 64 << 20, "addresses alone take memory"
    assert pages.grow(5, 4000)
    taken = before - torch.cuda.mem_get_info(GPU)[0] - idle
    assert 8 * 2 * PAGE <= taken <= 8 * 4 * PAGE
    print(f"{shape.nbytes / 1e9:.0f} GB of addresses: {idle >> 20} MiB, a text {taken >> 20} MiB")
    del memory, pages, buffer
    gc.collect()
    torch.cuda.empty_cache()
    assert before - torch.cuda.mem_get_info(GPU)[0] <= 32 << 20


def test_more_than_there_is_is_refused(memory: CudaPages) -> None:
    memory.add(SHAPE, MARGIN)
    assert not memory.reserve(201)
    assert memory.reserve(150)
