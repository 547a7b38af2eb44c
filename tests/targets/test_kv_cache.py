"""What rows see of KV caches, and what copied rows see."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.targets.decoder.attention import MASKED
from eagle_aot.targets.decoder.cache_views import StepView, copy_rows
from eagle_aot.targets.decoder.kv_cache import CacheSpec, KVCache
from eagle_aot.targets.decoder.positions import PositionGuard
from eagle_aot.targets.step import (
    MAX_ROWS,
    MAX_TREE_DEPTH,
    PADDING_SLOTS,
    SCRATCH_SLOTS,
    TAIL,
    PromptChunk,
    chain_step,
    flat_slots,
    longest_chunk,
    ring_slots,
)
from support.cache_simulator import LONGEST, CacheSimulator, Tree, assert_close
from support.kernels.sdpa_cases import Layer

SETTINGS = settings(max_examples=25, deadline=None, derandomize=True, database=None)
WINDOWS = [0, 4, 11, 64]


def layer(window: int, dtype: torch.dtype = torch.float32) -> Layer:
    return Layer(heads=4, kv_heads=2, head_dim=16, window=window, dtype=dtype)


def chain(rows: int) -> Tree:
    return [(row - 1, row) for row in range(rows)]


@st.composite
def trees(draw: st.DrawFn, max_rows: int = MAX_ROWS) -> Tree:
    """Draw a bonus token and a tree of drafts, at most MAX_TREE_DEPTH deep, in scratch slots."""
    parents, depths = [-1], [0]
    for row in range(1, draw(st.integers(1, max_rows))):
        deep_enough = [r for r in range(row) if depths[r] < MAX_TREE_DEPTH]
        chosen = draw(st.sampled_from(deep_enough[-4:] if draw(st.booleans()) else deep_enough))
        parents.append(chosen)
        depths.append(depths[chosen] + 1)
    scratch = draw(st.permutations(range(TAIL, SCRATCH_SLOTS)))
    return list(zip(parents, [0, *scratch], strict=False))


@SETTINGS
@given(data=st.data(), window=st.sampled_from(WINDOWS), sequences=st.sampled_from([1, 2, 4]))
def test_rows_see_only_their_paths_over_many_rounds(
    data: st.DataObject, window: int, sequences: int
) -> None:
    """Texts of different lengths start, grow by trees in one batch, end, and others start."""
    simulator = CacheSimulator(layer(window), sequences)
    longest = longest_chunk(window) if window else LONGEST
    for _ in range(data.draw(st.integers(3, 8))):
        for sequence in range(sequences):
            length = len(simulator.texts[sequence])
            if length > LONGEST - 130 or data.draw(st.integers(0, 4)) == 0:
                simulator.forget(sequence)
            if not simulator.texts[sequence]:
                for rows in data.draw(st.lists(st.integers(1, min(longest, 120)), max_size=2)):
                    assert_close(*simulator.prompt(sequence, rows))
        running = data.draw(st.lists(st.sampled_from(range(sequences)), min_size=1, unique=True))
        drafted = {s: data.draw(trees(MAX_ROWS // len(running))) for s in running}
        rows = max(map(len, drafted.values())) + data.draw(st.integers(0, 3))
        output, expected = simulator.step(drafted, rows)
        for b, tree in enumerate(drafted.values()):
            assert_close(output[b, : len(tree)], expected[b, : len(tree)])
        for sequence, tree in drafted.items():
            simulator.accept(sequence, data.draw(st.integers(0, len(tree) - 1)))


@pytest.mark.parametrize("use_splitk", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_rows_of_a_tree_in_scattered_slots_see_their_paths(window: int, use_splitk: bool) -> None:
    """Both stock operators and the kernel's are used, from several slots of a ring."""
    dtype = torch.float16 if use_splitk else torch.float32
    rtol, atol = (0.01, 0.003) if use_splitk else (1e-5, 2e-6)
    tree = [(-1, 0), (0, 87), (0, 20), (2, 61), (1, 16), (4, 33), (3, 40), (6, 17), (7, 86)]
    simulator = CacheSimulator(layer(window, dtype), use_splitk=use_splitk)
    for rows in (1, 60, 60, 60):
        simulator.prompt(0, rows)
        output, expected = simulator.step({0: tree})
        assert_close(output, expected, rtol, atol)
        simulator.accept(0, 5)
        simulator.step({0: chain(1)})
        simulator.accept(0, 0)
        simulator.step({0: chain(1)})  # moves are done once, and not by prompts


@pytest.mark.parametrize("window", WINDOWS)
def test_padding_rows_do_not_change_other_rows(window: int) -> None:
    """Padding follows a sequence's rows, or fills a whole sequence, with any values."""
    outputs = []
    for padding in (1.0, 100.0):
        simulator = CacheSimulator(layer(window), 2, padding=padding)
        simulator.prompt(0, 70)
        simulator.prompt(1, 20)
        stored = simulator.stored_keys(1, range(20))
        output, expected = simulator.step({0: chain(3), 1: []}, rows=8)
        assert_close(output[0, :3], expected[0, :3])
        assert torch.equal(simulator.stored_keys(1, range(20)), stored)
        outputs.append(output[0, :3])
        simulator.accept(0, 2)
        output, expected = simulator.step({0: chain(1), 1: chain(1)})
        assert_close(output, expected)
    assert torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("window", WINDOWS)
def test_a_new_sequence_sees_nothing_of_the_previous_one_in_its_cache(window: int) -> None:
    used, fresh = CacheSimulator(layer(window), 2), CacheSimulator(layer(window), 2)
    for rows in (96, 96, 40):
        used.prompt(1, rows)
    used.step({1: [(-1, 0), *((0, TAIL + row) for row in range(MAX_ROWS - 1))]})
    used.forget(1)
    for simulator in (used, fresh):
        simulator.renumber(2000)
    for rows in (1, 5, 90):
        output, expected = used.prompt(1, rows)
        assert torch.equal(output, fresh.prompt(1, rows)[0])
        assert_close(output, expected)
        output, expected = used.step({1: chain(9)})
        assert torch.equal(output, fresh.step({1: chain(9)})[0])
        assert_close(output, expected)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("sequences", [1, 3])
def test_moves_copy_an_accepted_path_to_the_slots_of_its_positions(
    window: int, sequences: int
) -> None:
    """A whole scattered tail is copied, and nothing else changes."""
    simulator, last = CacheSimulator(layer(window), sequences), sequences - 1
    simulator.prompt(last, 90)
    slots = [0, *torch.randperm(SCRATCH_SLOTS - TAIL).add(TAIL).tolist()[: TAIL - 1]]
    simulator.step({last: [(row - 1, slot) for row, slot in enumerate(slots)]})
    simulator.accept(last, TAIL - 1)
    context = range(90 - (window or 90), 90)
    unchanged = simulator.stored_keys(last, context)
    simulator.step({last: chain(1)})
    assert torch.equal(
        simulator.stored_keys(last, range(90, 90 + TAIL)), simulator.keys_of(range(91, 91 + TAIL))
    )
    assert torch.equal(simulator.stored_keys(last, context), unchanged)


@pytest.mark.parametrize("window", WINDOWS[1:])
def test_a_ring_takes_a_full_ring_when_empty_and_a_longest_chunk_after_context(window: int) -> None:
    simulator = CacheSimulator(layer(window))
    for rows in (ring_slots(window), longest_chunk(window), longest_chunk(window), 1):
        output, expected = simulator.prompt(0, rows)
        assert_close(output, expected)
    output, expected = simulator.prompt(0, ring_slots(window))
    assert not torch.allclose(output[0, 0].double(), expected[0, 0], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("sequences", [1, 3])
def test_each_sequence_has_its_own_slots_with_padding_slots_last(sequences: int) -> None:
    spec = CacheSpec(40, torch.float32, sequences)
    flat, ring = spec.cache(2, 8), spec.cache(2, 8, window=8)
    assert flat.k.shape == flat.v.shape == (2, sequences * flat_slots(40), 8)
    assert ring.k.shape == ring.v.shape == (2, sequences * (ring_slots(8) + 8), 8)
    for cache, last in ((flat, 39 + SCRATCH_SLOTS), (ring, 500)):
        assert cache.by_sequence(cache.k).shape == (2, sequences, cache.slots, 8)
        assert not cache.committed(torch.tensor(last), torch.tensor(last))[-PADDING_SLOTS:].any()


def test_masks_are_finite_and_limit_a_tail_to_the_window() -> None:
    step, spec = chain_step(torch.tensor([1, 30])), CacheSpec(64, torch.float32)
    for window, seen in ((4, [2, 4]), (0, [2, TAIL])):
        view = StepView(step, spec.cache(1, 8, window))
        assert set(view.mask.unique().tolist()) <= {0.0, MASKED}
        assert (view.tail_mask[:, 0] == 0).sum(-1).tolist() == seen


def test_reset_zeroes_both_buffers() -> None:
    simulator = CacheSimulator(layer(0, torch.bfloat16))
    simulator.prompt(0, 3)
    cache = simulator.cache
    assert cache.k.any() and cache.v.any()
    cache.reset()
    assert not cache.k.any() and not cache.v.any()
    assert cache.k.dtype == torch.bfloat16


def rows(count: int, batch: int = 1) -> Tensor:
    """Return zeros [batch, count, 2]."""
    return torch.zeros(batch, count, 2)


@pytest.mark.parametrize(("batch", "count", "positions", "message"), [
    (2, 1, [4], "one sequence at a time: got a batch of 2"),
    (1, 1, [5], "position 5 leaves a gap: 4 positions are filled"),
    (1, 1, [-1], "leaves a gap"),
    (1, 2, [4, 6], "count up by one"),
    (1, 2, [4, 3], "count up by one"),
    (1, 2, [4, 4], "count up by one"),
    (1, 2, [4], "count up by one"),
    (1, 1, [3, 4], "count up by one"),
    (1, 95, list(range(4, 99)), "position 98 is beyond the cache of 98"),
])  # fmt: skip
def test_position_guard_refuses_what_the_cache_cannot_hold(
    batch: int, count: int, positions: list[int], message: str
) -> None:
    guard = PositionGuard(10)
    guard.advance(rows(4), torch.arange(4))
    with pytest.raises(SettingError, match=message):
        guard.advance(rows(count, batch), torch.tensor(positions))
    assert guard.valid == 4
    guard.advance(rows(94), torch.arange(4, 98))  # drafts, in scratch slots


def test_a_rollback_truncates_the_valid_prefix() -> None:
    guard = PositionGuard(10)
    guard.advance(rows(8), torch.arange(8))
    guard.advance(rows(1), torch.tensor([3]))
    with pytest.raises(ValueError, match="position 5 leaves a gap: 4 positions are filled"):
        guard.advance(rows(1), torch.tensor([5]))
    guard.reset()
    with pytest.raises(ValueError, match="position 1 leaves a gap: 0 positions are filled"):
        guard.advance(rows(1), torch.tensor([1]))


def test_position_guard_refuses_a_rollback_to_overwritten_ring_slots() -> None:
    guard = PositionGuard(400, ring_window=8)
    guard.advance(rows(104), torch.arange(104))  # all slots, from an empty cache
    guard.advance(rows(96), torch.arange(104, 200))
    with pytest.raises(SettingError, match="97 rows at position 200: at most 96 fit"):
        guard.advance(rows(97), torch.arange(200, 297))
    guard.advance(rows(1), torch.arange(104, 105))  # 96 back
    with pytest.raises(SettingError, match="position 103 is more than 96 back from 200"):
        guard.advance(rows(1), torch.arange(103, 104))
    guard.advance(rows(3), torch.arange(3))  # a new sequence
    with pytest.raises(SettingError, match="no rows"):
        guard.advance(rows(0), torch.arange(0))


@pytest.mark.parametrize("window", [0, 8])
def test_host_caches_ignore_the_default_device(window: int) -> None:
    spec = CacheSpec(64, torch.bfloat16, on_host=True)
    with torch.device("meta"):
        cache = spec.cache(2, 16, window)
        elsewhere = CacheSpec(64, torch.bfloat16).cache(2, 16, window)
    assert {buffer.device.type for buffer in cache.buffers()} == {"cpu"}
    assert {buffer.device.type for buffer in elsewhere.buffers()} == {"meta"}
    assert dict(cache.named_buffers()).keys() == {"k", "v"} and not cache.state_dict()
    assert cache.k.shape == elsewhere.k.shape and not cache.k.any() and not cache.v.any()


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
