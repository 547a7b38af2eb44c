"""The caches on their own: which stored entries a query sees."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.targets.decoder.kv_cache import MASKED, Chunk, FlatKVCache, KVCache, RingKVCache
from eagle_aot.targets.decoder.positions import PositionGuard

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, database=None)
GENERATION = 1000


def write_and_look(cache: KVCache, start: int, length: int, generation: int) -> list[list[float]]:
    """Store entries that name their position and generation; what each query sees, ascending."""
    input_pos = torch.arange(start, start + length)
    entries = (input_pos + GENERATION * generation).float().view(1, 1, length, 1)
    keys, values = cache.update(entries, -entries, input_pos)
    assert torch.equal(keys, -values)
    mask = cache.mask(input_pos)
    assert set(mask.unique().tolist()) <= {0.0, MASKED}
    return [sorted(keys[0, 0, row == 0, 0].tolist()) for row in mask]


@SETTINGS
@given(data=st.data(), window=st.integers(8, 12), ring=st.booleans())
def test_a_query_sees_exactly_the_newest_entries_within_its_reach(
    data: st.DataObject, window: int, ring: bool
) -> None:
    """Chunks of up to a window, behind which up to a verify window is rolled back, many rounds."""
    cache = (
        RingKVCache(1, window, 1, torch.float32) if ring else FlatKVCache(1, 200, 1, torch.float32)
    )
    reach = window if ring else 200
    newest: dict[int, float] = {}
    start = 0
    for generation in range(14):
        farthest = max(newest, default=-1) + 1
        start = data.draw(st.integers(max(0, farthest - 8), start))
        length = data.draw(st.integers(1, window))
        newest |= {p: p + GENERATION * generation for p in range(start, start + length)}
        for query, seen in enumerate(write_and_look(cache, start, length, generation), start):
            visible = range(max(0, query - reach + 1), query + 1)
            assert seen == sorted(float(newest[p]) for p in visible)
        start += length


@pytest.mark.parametrize("ring", [True, False])
def test_attending_takes_what_the_mask_shows_with_either_operator(ring: bool) -> None:
    torch.manual_seed(0)
    cache: KVCache = RingKVCache(2, 12, 16, torch.float16)
    if not ring:
        cache = FlatKVCache(2, 64, 16, torch.float16)
    for start in range(0, 40, 5):
        input_pos = torch.arange(start, start + 5)
        cache.update(*torch.randn(2, 1, 2, 5, 16).half(), input_pos)
        q, chunk = torch.randn(1, 5, 6, 16).half(), Chunk(input_pos, cache)
        cache.splits_keys = False
        stock = cache.attend(q, chunk, 0.3)
        cache.splits_keys = True
        split = cache.attend(q, chunk, 0.3)
        assert split.shape == stock.shape and split.dtype == stock.dtype
        torch.testing.assert_close(split, stock, rtol=0.01, atol=0.003)


@pytest.mark.parametrize("ring", [True, False])
def test_entries_of_a_longer_sequence_are_invisible_from_position_0(ring: bool) -> None:
    cache = RingKVCache(1, 8, 1, torch.float32) if ring else FlatKVCache(1, 64, 1, torch.float32)
    for start in range(0, 64, 8):
        write_and_look(cache, start, 8, generation=1)
    seen = write_and_look(cache, 0, 5, generation=2) + write_and_look(cache, 5, 3, generation=2)
    assert seen == [[p + 2.0 * GENERATION for p in range(query + 1)] for query in range(8)]


def test_a_ring_takes_twice_its_window_from_empty() -> None:
    cache = RingKVCache(1, 8, 1, torch.float32)
    seen = write_and_look(cache, 0, 16, generation=0)
    assert seen == [[float(p) for p in range(max(0, query - 7), query + 1)] for query in range(16)]


def test_reset_zeroes_both_buffers() -> None:
    cache = FlatKVCache(2, 4, 3, torch.bfloat16)
    cache.update(
        torch.ones(1, 2, 1, 3).bfloat16(), torch.ones(1, 2, 1, 3).bfloat16(), torch.ones(1).long()
    )
    assert cache.k.any() and cache.v.any()
    cache.reset()
    assert not cache.k.any() and not cache.v.any()
    assert cache.k.dtype == torch.bfloat16


def rows(count: int, batch: int = 1) -> Tensor:
    return torch.zeros(batch, count, 2)


@pytest.mark.parametrize(
    ("batch", "count", "positions", "message"),
    [
        (2, 1, [4], "one sequence at a time: got a batch of 2"),
        (1, 1, [5], "position 5 leaves a gap: 4 positions are filled"),
        (1, 1, [-1], "leaves a gap"),
        (1, 2, [4, 6], "count up by one"),
        (1, 2, [4, 3], "count up by one"),
        (1, 2, [4, 4], "count up by one"),
        (1, 2, [4], "count up by one"),
        (1, 1, [3, 4], "count up by one"),
        (1, 7, list(range(4, 11)), "position 10 is beyond the cache of 10"),
    ],
)
def test_the_guard_refuses_what_the_cache_cannot_hold(
    batch: int, count: int, positions: list[int], message: str
) -> None:
    guard = PositionGuard(10)
    guard.advance(rows(4), torch.arange(4))
    with pytest.raises(SettingError, match=message):
        guard.advance(rows(count, batch), torch.tensor(positions))
    assert guard.valid == 4
    guard.advance(rows(6), torch.arange(4, 10))


def test_a_rollback_truncates_what_is_valid() -> None:
    guard = PositionGuard(10)
    guard.advance(rows(8), torch.arange(8))
    guard.advance(rows(1), torch.tensor([3]))
    with pytest.raises(ValueError, match="position 5 leaves a gap: 4 positions are filled"):
        guard.advance(rows(1), torch.tensor([5]))
    guard.reset()
    with pytest.raises(ValueError, match="position 1 leaves a gap: 0 positions are filled"):
        guard.advance(rows(1), torch.tensor([1]))


def test_the_guard_refuses_what_a_ring_has_overwritten() -> None:
    guard = PositionGuard(200, ring_window=8)
    guard.advance(rows(16), torch.arange(16))  # twice the window, from an empty cache
    guard.advance(rows(9), torch.arange(16, 25))
    with pytest.raises(SettingError, match="10 rows at position 25: at most 9 fit"):
        guard.advance(rows(10), torch.arange(25, 35))
    guard.advance(rows(1), torch.arange(16, 17))  # nine back
    with pytest.raises(SettingError, match="position 15 is more than 9 back from 25"):
        guard.advance(rows(1), torch.arange(15, 16))
    guard.advance(rows(3), torch.arange(3))  # a new sequence
    with pytest.raises(SettingError, match="no rows"):
        guard.advance(rows(0), torch.arange(0))
