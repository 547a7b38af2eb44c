"""Rows of one sequence's cache in another's: a text goes on there as where it began."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.targets.decoder.copied_rows import copy_rows
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.step import PromptChunk, longest_chunk, ring_slots
from support.cache_play import CachePlay
from support.kernels.sdpa_cases import Layer

WINDOWS = [0, 4, 11, 64]
TIGHT = {"rtol": 1e-5, "atol": 2e-6}  # float32 sums


def layer(window: int) -> Layer:
    return Layer(heads=4, kv_heads=2, head_dim=16, window=window, dtype=torch.float32)


def copy(
    cache: KVCache, source: int, sequence: int, start: int, stop: int, at_once: bool = False
) -> None:
    rows = torch.arange(start, stop)
    copy_rows([cache], *(PromptChunk(rows, torch.tensor([s]), at_once) for s in (source, sequence)))


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(data=st.data(), window=st.sampled_from(WINDOWS))
def test_a_text_goes_on_in_another_sequence(data: st.DataObject, window: int) -> None:
    """From any of its positions that a ring has not forgotten, in a cache that was used before."""
    play = CachePlay(layer(window), 3)
    longest = longest_chunk(window) if window else 90
    for sequence in (0, 2):
        for _ in range(data.draw(st.integers(1, 2))):
            play.prompt(sequence, data.draw(st.integers(1, longest)))
    length = len(play.texts[0])
    forgotten = max(0, length - ring_slots(window)) if window else 0
    first = forgotten + window if forgotten else 1
    kept = data.draw(st.integers(min(first, length), length))
    part = data.draw(st.integers(1, 60))
    for start in range(0, kept, part):
        copy(play.cache, 0, 2, start, min(start + part, kept))
    play.texts[2] = play.texts[0][:kept]
    for sequence in (2, 0):
        for rows in (1, data.draw(st.integers(1, min(longest, 90)))):
            found, expected = play.prompt(sequence, rows)
            torch.testing.assert_close(found.double(), expected, **TIGHT)
    found, expected = play.step({2: [(-1, 0), (0, 20), (1, 33)], 0: [(-1, 0), (0, 1)]}, rows=3)
    torch.testing.assert_close(found[0].double(), expected[0], **TIGHT)
    torch.testing.assert_close(found[1, :2].double(), expected[1, :2], **TIGHT)


@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("at_once", [False, True])
def test_nothing_else_is_written(window: int, at_once: bool) -> None:
    """By stock operators, and by one for both buffers."""
    cache = CacheSpec(40, torch.float32, 3).cache(2, 4, window)
    for buffer in (cache.k, cache.v):
        buffer.copy_(torch.rand_like(buffer))
    before = {name: cache.by_sequence(buffer).clone() for name, buffer in cache.named_buffers()}
    copy(cache, 1, 0, 3, 7, at_once)
    for name, buffer in cache.named_buffers():
        after, expected = cache.by_sequence(buffer), before[name]
        expected[:, 0, 3:7] = expected[:, 1, 3:7]
        assert torch.equal(after, expected)
