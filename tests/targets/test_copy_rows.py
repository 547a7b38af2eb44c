"""Copying rows from one sequence's cache to another's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.targets.decoder.cache_views import copy_rows
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.step import PromptChunk, longest_chunk, ring_slots
from support.cache_simulator import CacheSimulator, assert_close
from support.kernels.sdpa_cases import Layer

WINDOWS = [0, 4, 11, 64]


def layer(window: int) -> Layer:
    return Layer(heads=4, kv_heads=2, head_dim=16, window=window, dtype=torch.float32)


def copy(
    cache: KVCache, source: int, sequence: int, start: int, stop: int, by_operator: bool = False
) -> None:
    rows = torch.arange(start, stop)
    chunks = [PromptChunk(rows, torch.tensor([s]), by_operator) for s in (source, sequence)]
    copy_rows([cache], chunks[0], chunks[1])


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(data=st.data(), window=st.sampled_from(WINDOWS))
def test_a_sequence_continues_in_another_sequence_after_copying(
    data: st.DataObject, window: int
) -> None:
    """Continue at any position that is still in the ring, in a cache that was used before."""
    simulator = CacheSimulator(layer(window), 3)
    longest = longest_chunk(window) if window else 90
    for sequence in (0, 2):
        for _ in range(data.draw(st.integers(1, 2))):
            simulator.prompt(sequence, data.draw(st.integers(1, longest)))
    length = len(simulator.texts[0])
    forgotten = max(0, length - ring_slots(window)) if window else 0
    first = forgotten + window if forgotten else 1
    copied = data.draw(st.integers(min(first, length), length))
    part = data.draw(st.integers(1, 60))
    for start in range(0, copied, part):
        copy(simulator.cache, 0, 2, start, min(start + part, copied))
    simulator.texts[2] = simulator.texts[0][:copied]
    for sequence in (2, 0):
        for rows in (1, data.draw(st.integers(1, min(longest, 90)))):
            output, expected = simulator.prompt(sequence, rows)
            assert_close(output, expected)
    output, expected = simulator.step(
        {2: [(-1, 0), (0, 20), (1, 33)], 0: [(-1, 0), (0, 1)]}, rows=3
    )
    assert_close(output[0], expected[0])
    assert_close(output[1, :2], expected[1, :2])


@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("by_operator", [False, True])
def test_copying_writes_no_other_slots(window: int, by_operator: bool) -> None:
    cache = CacheSpec(40, torch.float32, 3).cache(2, 4, window)
    for buffer in (cache.k, cache.v):
        buffer.copy_(torch.rand_like(buffer))
    unchanged = {name: cache.by_sequence(buffer).clone() for name, buffer in cache.named_buffers()}
    copy(cache, 1, 0, 3, 7, by_operator)
    for name, buffer in cache.named_buffers():
        after, expected = cache.by_sequence(buffer), unchanged[name]
        expected[:, 0, 3:7] = expected[:, 1, 3:7]
        assert torch.equal(after, expected)
