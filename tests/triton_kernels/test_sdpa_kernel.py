"""The attention kernels without a GPU: compilation, and the division of keys among programs."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from eagle_aot.triton_kernels.device import H100
from eagle_aot.triton_kernels.sdpa_splitk import kernel
from eagle_aot.triton_kernels.sdpa_splitk.tiling import (
    HEAD_DIMS,
    MAX_SPLITS,
    TAIL,
    TILE_ROWS,
    Tiling,
    choose_tiling,
    chunk_length,
    is_tileable,
    ring_splits,
    spread,
    tile_rows,
)
from support.kernels.compiled import Launch, launches, local_memory, rows_attention

SHARED_MEMORY = 227 << 10
"""Bytes of shared memory per program of an H100."""

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "window"), [
    (32, 4, 512, 0),  # Gemma 4 31B, full
    (32, 16, 256, 1024),  # Gemma 4 31B, sliding
    (32, 16, 256, 0),  # a draft head of Gemma 4 31B
    (32, 8, 128, 0),  # Llama
    (28, 4, 128, 0),
    (4, 2, 64, 64),
    (16, 2, 256, 0),
    (8, 8, 64, 0),
    (4, 2, 16, 16),
    (64, 4, 128, 0),  # 128 rows
    (32, 4, 512, 1024),
    (16, 2, 256, 1024),  # 64 rows
])  # fmt: skip
def test_the_kernels_fit_an_h100_without_spilling(
    heads: int, kv_heads: int, head_dim: int, window: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    layer = heads, kv_heads, head_dim, window
    first, combine = (call.compiled(H100) for call in calls_for(monkeypatch, *layer))
    assert first.metadata.shared <= SHARED_MEMORY
    assert local_memory(first.asm["cubin"], tmp_path) == 0
    assert local_memory(combine.asm["cubin"], tmp_path) == 0


@pytest.mark.parametrize("layer", [(32, 4, 512, 0), (32, 16, 256, 1024), (32, 8, 128, 0)], ids=str)
def test_int8_entries_are_copied_in_words_of_16_bytes_and_not_read_one_by_one(
    layer: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into shared memory; no thread reads a single byte of it."""
    first, _ = launches(
        monkeypatch, kernel, lambda: rows_attention(kernel, *layer, torch.int8), H100
    )
    text = first.compiled(H100).asm["ptx"]
    assert "cp.async.cg.shared.global" in text and "ld.shared.b8" not in text


def test_wide_heads_prefetch_the_next_tile_before_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    text = calls_for(monkeypatch, 32, 4, 512)[0].compiled(H100).asm["ptx"]
    before, prefetch, after = text.rpartition("prefetch.global.L2")
    assert prefetch and before.count(prefetch) == 1  # keys, and now values
    assert after.index("cp.async.wait_group") < after.index("wgmma.mma_async")


def test_narrow_heads_do_not_prefetch(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _) = calls_for(monkeypatch, 32, 4, 256)
    assert "prefetch" not in first.compiled(H100).asm["ptx"]


@pytest.mark.parametrize("window", [0, 64])
@pytest.mark.parametrize("kind", ["i64", "constexpr"])
def test_the_kernel_compiles_with_int64_or_constant_sizes(
    window: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AOTInductor passes unbounded sizes as int64 and sizes that are 1 as constants."""
    (first, _) = calls_for(monkeypatch, 4, 2, 64, window)
    assert first.compiled(H100, batch=kind, rows=kind, of_cache=kind).asm["ptx"]
    assert first.compiled(H100, batch=kind, of_cache=kind).asm["ptx"]


def calls_for(
    monkeypatch: pytest.MonkeyPatch, heads: int, kv_heads: int, head_dim: int, window: int = 0
) -> list[Launch]:
    """Return the calls of both kernels for a layer on an H100."""
    return launches(
        monkeypatch, kernel, lambda: rows_attention(kernel, heads, kv_heads, head_dim, window), H100
    )


GROUPS = st.sampled_from([1, 2, 4, 7, 8, 16])
KV_HEADS = st.sampled_from([1, 2, 3, 8, 40])
LAYERS = st.tuples(GROUPS, KV_HEADS, st.sampled_from(HEAD_DIMS))


@SETTINGS
@given(layer=LAYERS, reach=st.integers(0, 1 << 20))
def test_the_chunks_of_a_flat_cache_reach_the_last_key_and_fill_the_gpu(
    layer: tuple[int, int, int], reach: int
) -> None:
    group, kv_heads, head_dim = layer
    tiles = choose_tiling(group * kv_heads, kv_heads, head_dim, 0)
    length = chunk_length(reach, tiles)
    chunks = reach // length + 1
    assert length % tiles.key_tile == 0 and chunks <= tiles.splits
    assert length == tiles.chunk or 2 * chunks >= tiles.splits


@SETTINGS
@given(
    first=st.integers(0, 10_000),
    window=st.integers(1, 2048),
    rows=st.integers(1, 64),
    chunk=st.sampled_from([16, 128]),
)
def test_the_chunks_of_a_ring_cover_all_rows(
    first: int, window: int, rows: int, chunk: int
) -> None:
    last_key = first + spread(rows) - TAIL
    touched = last_key // chunk - max(0, first - window + 1) // chunk + 1
    assert touched <= ring_splits(window, chunk, rows)


@pytest.mark.parametrize("window", [1, 16, 1024, 32768, 1 << 20])
def test_the_chunks_of_a_ring_fit_one_tile_of_the_second_kernel(window: int) -> None:
    tiles = choose_tiling(32, 8, 128, window)
    rows = tile_rows(tiles, 4)
    assert 1 <= ring_splits(window, tiles.chunk, rows) == tiles.splits <= MAX_SPLITS
    assert tiles.chunk == 128 or ring_splits(window, tiles.chunk // 2, rows) > MAX_SPLITS


@SETTINGS
@given(layer=LAYERS, window=st.sampled_from([0, 64, 1024]))
def test_a_tile_holds_all_rows_of_a_group(layer: tuple[int, int, int], window: int) -> None:
    group, kv_heads, head_dim = layer
    tiles = choose_tiling(group * kv_heads, kv_heads, head_dim, window)
    rows = tile_rows(tiles, group)
    assert rows >= TILE_ROWS and rows * group <= tiles.row_tile
    assert tiles.row_tile & (tiles.row_tile - 1) == 0
    assert tiles.chunk % tiles.key_tile == 0


@SETTINGS
@given(layer=LAYERS, first=st.integers(0, 1 << 20))
def test_the_rows_of_a_tile_have_chunks_of_two_lengths_at_most(
    layer: tuple[int, int, int], first: int
) -> None:
    group, kv_heads, head_dim = layer
    tiles = choose_tiling(group * kv_heads, kv_heads, head_dim, 0)
    reaches = range(first, first + spread(tile_rows(tiles, group)) + 1)
    lengths = {chunk_length(reach, tiles) for reach in reaches}
    shorter = chunk_length(first, tiles)
    assert lengths <= {shorter, shorter + tiles.chunk}


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "supported"), [
    (32, 4, 512, True),
    (64, 4, 512, False),  # 128 rows of 512 do not fit registers
    (32, 1, 128, True),
    (32, 3, 128, False),
    (32, 4, 96, False),
    (32, 4, 1024, False),
])  # fmt: skip
def test_is_tileable_knows_the_supported_layers(
    heads: int, kv_heads: int, head_dim: int, supported: bool
) -> None:
    assert is_tileable(heads, kv_heads, head_dim) == supported


def test_the_tiling_of_a_full_gemma_layer_fills_an_h100() -> None:
    """One program per key head is for tails."""
    assert choose_tiling(32, 4, 512, 0) == Tiling(64, 32, 32, 32, 8, 2, ahead=True)
