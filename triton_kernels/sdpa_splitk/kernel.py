"""Attention of rows on a GPU: two kernels that read a visible key once per tile of rows.

Importing this module needs triton. The operator of `op.py` imports it only to run on a GPU or to be
lowered for one.

The first kernel divides a row's keys among programs. Committed keys, up to `TAIL` before the row's
position, are divided into chunks: one program processes a chunk for a tile of rows of one sequence.
Other programs gather the tails of some rows. The second kernel adds up a row's chunks, and its tail
last.

The length of a row's chunks depends on its own position (`tiling.py`), tiles of keys start at fixed
distances from the start of their chunk, and a masked key adds exactly 0 to a row. So a row's bits
depend only on its position and its visible keys: not on the other rows, on its tile, on the slots
of its tail, or on the length of the cache.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels import cuda_source
from eagle_aot.triton_kernels.kv_int8.kernel import with_strides
from eagle_aot.triton_kernels.sdpa_splitk.combine import sdpa_combine_kernel
from eagle_aot.triton_kernels.sdpa_splitk.steps import (
    attend,
    cache_lines,
    chunk_length,
    first_chunk,
    prefetch,
    queries,
    store_partial,
    sums,
    tile_items,
)
from eagle_aot.triton_kernels.sdpa_splitk.tail import attend_tails
from eagle_aot.triton_kernels.sdpa_splitk.tiling import (
    LOG2_E,
    Tiling,
    choose_tiling,
    is_wide,
    reads_pairs,
    tail_rows,
    tile_rows,
    wide_tiling,
)
from eagle_aot.triton_kernels.sdpa_splitk.wide import launch as launch_wide

COMBINE_D = {512: 256}
"""Elements of a head per program of the second kernel, measured on an H100."""

NARROW_COMBINE_D = 128
"""The same for other head dimensions, if they are that large."""

COMBINE_ELEMENTS = 8192
"""Elements per warp of the second kernel. With few warps a thread adds most elements itself;
usually there is one warp."""


@triton.jit(do_not_specialize=["batch", "rows", "of_head", "of_cache"])
def sdpa_splitk_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    tail_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    batch: tl.tensor,
    rows: tl.tensor,
    of_head: tl.tensor,
    of_cache: tl.tensor,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
    PITCH: tl.constexpr,
    TAIL: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    TAIL_ROWS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    PAIRED: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Compute what one chunk of one key/value head adds to each of ROWS rows of a sequence.

    q [batch, rows, HEADS, D], k and v [HEADS / GROUP, caches, slots, ENTRY], INT8 where ENTRY is
    not D, with strides of `of_head` and `of_cache` entries and PITCH elements, int64 positions
    [batch, rows], sequences [batch] and tail [batch, rows, TAIL] -> partial [SPLITS + 1, batch,
    rows, HEADS, D], the weighted sum of values divided by its largest element, and stats float32
    [3, SPLITS + 1, batch, rows, HEADS]: the maximum score (base 2), the sum of weights, that
    element.

    Programs for tails come first. In the others, tiles of rows vary fastest, then heads: tiles that
    read the same keys run at the same time, and all but one find them in L2, and keys that lie next
    to each other are read together. Chunks vary last, in a flat cache twice, for neighbouring rows
    whose chunks differ in length: the second time is for rows with the longer chunks, and usually
    there are none.
    """
    KV_HEADS: tl.constexpr = HEADS // GROUP
    program = tl.program_id(0)
    tails = batch * tl.cdiv(rows, TAIL_ROWS) * KV_HEADS
    if program < tails:
        attend_tails(
            q_ptr, k_ptr, v_ptr, positions_ptr, sequences_ptr, tail_ptr, partial_ptr, stats_ptr,
            program, batch, rows, of_head, of_cache, SCALE, HEADS, GROUP, D, ENTRY, PITCH, TAIL,
            WINDOW, RING, SPLITS, TAIL_ROWS, ROW_TILE, KEY_TILE, PAIRED,
        )  # fmt: skip
        return
    program -= tails
    row_tiles = tl.cdiv(rows, ROWS)
    first_row = program % row_tiles * ROWS
    kv_head = program // row_tiles % KV_HEADS
    sequence = program // row_tiles // KV_HEADS % batch
    chunk = program // row_tiles // KV_HEADS // batch
    split = chunk % SPLITS
    cache = tl.load(sequences_ptr + sequence)  # loaded together with the positions
    row, item, used = tile_items(sequence, first_row, rows, kv_head, HEADS, GROUP, ROWS, ROW_TILE)
    # The last committed key; negative at the start of a sequence and for padding.
    reach = tl.load(positions_ptr + row, mask=used, other=-1).to(tl.int32) - TAIL
    least = tl.min(tl.where(reach >= 0, reach, 1 << 30), 0)
    if WINDOW:
        first = first_chunk(least, TAIL, WINDOW, CHUNK)
        length = CHUNK
        start = (first + (split + SPLITS - first % SPLITS) % SPLITS) * CHUNK
    else:
        length = chunk_length(least, CHUNK, SPLITS) + chunk // SPLITS * CHUNK
        reach = tl.where(chunk_length(reach, CHUNK, SPLITS) == length, reach, -1)
        start = split * length
    bound = tl.max(reach, 0)
    if start > bound:
        return
    q, q_odd = queries(q_ptr, item, used, D, PAIRED)
    first_entry = (kv_head.to(tl.int64) * of_head + cache * of_cache) * ENTRY
    k_ptr += first_entry
    v_ptr += first_entry
    m_i, l_i, acc, acc_odd = sums(ROW_TILE, D, PAIRED)
    end = tl.minimum(start + length, bound + 1)
    if AHEAD:
        line = cache_lines(KEY_TILE, D, k_ptr.dtype.element_ty.primitive_bitwidth)
        zeros = tl.zeros_like(line)
    for tile in range(start, end, KEY_TILE):
        if AHEAD:
            zeros |= prefetch(k_ptr, tile + KEY_TILE, end, KEY_TILE, D, PITCH)
            zeros |= prefetch(v_ptr, tile + KEY_TILE, end, KEY_TILE, D, PITCH)
        key = tile + tl.arange(0, KEY_TILE)
        present = key <= bound
        visible = key[None, :] <= reach[:, None]
        slot = key
        if WINDOW:
            present = present & (key > least + TAIL - WINDOW)
            visible = visible & (key[None, :] > reach[:, None] + TAIL - WINDOW)
            slot = key % RING
        m_i, l_i, acc, acc_odd = attend(
            q, q_odd, k_ptr, v_ptr, slot, present, visible, m_i, l_i, acc, acc_odd, SCALE, D, PITCH,
            PAIRED,
        )  # fmt: skip
    items = batch * rows * HEADS
    field = (SPLITS + 1) * items
    store_partial(
        partial_ptr, stats_ptr, split * items + item, field, reach >= 0, m_i, l_i, acc, acc_odd, D,
        PAIRED,
    )  # fmt: skip
    if AHEAD:
        tl.store(stats_ptr + line, 0.0, mask=zeros != 0)  # never: see `prefetch`


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    sequences: Tensor,
    tail: Tensor,
    scale: float,
    window: int,
    ring: int,
    tiling: Tiling | None = None,
    out: Tensor | None = None,
    unless: int = 0,
) -> Tensor:
    """Launch both kernels; arguments and result are those of `op.sdpa_splitk`, [B, T, heads, D].

    Within `compiled_from_cuda` the kernel of `wide.cu` takes the place of the first where it can.
    `tiling` replaces the one that the layer's shape has, for comparisons. The result is written to
    `out`, if given; if `unless` is 1, nothing is launched or written.
    """
    batch, rows, heads, head_dim = q.shape
    k, v, *strides = with_strides(k, v)
    layer = heads, k.shape[0], head_dim, window
    wide = tiling is None and is_wide(*layer, q.dtype, k.dtype) and cuda_source.is_compiling()
    if wide:
        tiling = wide_tiling(k.shape[0])
    tiles = tiling or choose_tiling(*layer, int8=k.dtype == torch.int8)
    partial_dtype = torch.float32 if q.dtype == torch.float32 else torch.float16
    items = batch * rows * heads
    partial = q.new_empty((tiles.splits + 1, items, head_dim), dtype=partial_dtype)
    stats = q.new_empty((3, tiles.splits + 1, items), dtype=torch.float32)
    out = q.new_empty(q.shape) if out is None else out
    positions = positions.contiguous()
    inputs = q.contiguous(), k, v, positions, sequences.contiguous(), tail.contiguous()
    constants = {"HEADS": heads, "D": head_dim, "TAIL": tail.shape[2], "WINDOW": window}
    constants |= {"CHUNK": tiles.chunk, "SPLITS": tiles.splits}
    chunks = (*inputs, partial, stats), scale, strides, tiles, unless
    if wide:
        launch_wide(*chunks)
    else:
        _launch_chunks(*chunks, ring, constants)
    width, warps = combine_tile(tiles.splits, head_dim)
    wrap_triton(sdpa_combine_kernel)[(items * (1 - unless), triton.cdiv(head_dim, width))](
        partial,
        stats,
        positions,
        out,
        items,
        SPLIT_TILE=triton.next_power_of_2(tiles.splits),
        D_TILE=width,
        num_warps=warps,
        **constants,
    )
    return out


def _launch_chunks(
    tensors: Sequence[Tensor],
    scale: float,
    strides: Sequence[int],
    tiles: Tiling,
    unless: int,
    ring: int,
    constants: dict[str, int],
) -> None:
    """Launch the first kernel with its tensors: q [B, T, heads, D], k and v [kv_heads, S, slots, E]
    and others. The second kernel has the same `constants`."""
    (batch, rows, heads, head_dim), k = tensors[0].shape, tensors[1]
    of_head, of_cache, pitch = strides
    kv_heads, window = k.shape[0], constants["WINDOW"]
    group = heads // kv_heads
    rows_per_tile, rows_per_tail = tile_rows(tiles, group), tail_rows(tiles, group)
    chunks = triton.cdiv(rows, rows_per_tile) * tiles.splits * (1 if window else 2)
    tails = triton.cdiv(rows, rows_per_tail)
    wrap_triton(sdpa_splitk_kernel)[(batch * (tails + chunks) * kv_heads * (1 - unless),)](
        *tensors,
        batch,
        rows,
        of_head,
        of_cache,
        SCALE=scale * LOG2_E,
        ENTRY=k.shape[-1],
        PITCH=pitch,
        GROUP=group,
        RING=ring,
        ROWS=rows_per_tile,
        TAIL_ROWS=rows_per_tail,
        ROW_TILE=tiles.row_tile,
        KEY_TILE=tiles.key_tile,
        PAIRED=k.dtype == torch.int8 and reads_pairs(tiles.row_tile, head_dim),
        AHEAD=tiles.ahead and not triton.knobs.runtime.interpret,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **constants,
    )


def combine_tile(splits: int, head_dim: int) -> tuple[int, int]:
    """Return the elements of a head per program of the second kernel, and its number of warps."""
    width = COMBINE_D.get(head_dim, min(head_dim, NARROW_COMBINE_D))
    return width, max(1, triton.next_power_of_2(splits) * width // COMBINE_ELEMENTS)
