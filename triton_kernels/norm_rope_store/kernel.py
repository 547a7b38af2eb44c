"""Normalises, rotates and stores heads on a GPU, in one launch.

A program processes a few rows of the queries, keys or values of one head. Programs need no order:
an entry is moved by the program that stores a row in its old slot, which has read it before.

Importing this module needs triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.kv_int8 import head_dim_of
from eagle_aot.triton_kernels.kv_int8.kernel import store_quantized

TILE = 8
"""Rows per program."""

WARPS = 8

SEARCHED = tl.constexpr(64)
"""Rows whose slots a program compares at a time."""


@triton.jit
def rounded_sum(
    parts_ptr: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    column: tl.tensor,
    is_row: tl.tensor,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """Return the sums of the parts at `row` and `column`, rounded like a product: float32."""
    total = tl.zeros((row + column).shape, tl.float32)
    for split in tl.static_range(SPLITS):
        part = parts_ptr + (split * rows + row) * WIDTH + column
        total += tl.load(part, mask=is_row, other=0.0).to(tl.float32)
    return total.to(DTYPE).to(tl.float32)


@triton.jit
def inverse_rms(squares: tl.tensor, D: tl.constexpr, EPS: tl.constexpr) -> tl.tensor:
    """Return the inverse root mean square of each row of D elements, whose `squares` [TILE, ...]
    add up: [TILE, 1]."""
    return tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / D + EPS)


@triton.jit
def rotated(
    parts_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    first: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    is_row: tl.tensor,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_NORM: tl.constexpr,
    EPS: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the halves of the normalised and rotated head whose columns begin at `first`: float32
    [TILE, D / 2] each. Each column of one is rotated with the same column of the other."""
    low = tl.arange(0, D // 2)[None, :]
    high = D // 2 + low
    x = rounded_sum(parts_ptr, row, rows, first + low, is_row, SPLITS, WIDTH, DTYPE)
    y = rounded_sum(parts_ptr, row, rows, first + high, is_row, SPLITS, WIDTH, DTYPE)
    if HAS_NORM:
        factor = inverse_rms(x * x + y * y, D, EPS)
        x = (x * factor * tl.load(weight_ptr + low).to(tl.float32)).to(DTYPE).to(tl.float32)
        y = (y * factor * tl.load(weight_ptr + high).to(tl.float32)).to(DTYPE).to(tl.float32)
    cos_ptr += row * D
    sin_ptr += row * D
    x_cos = tl.load(cos_ptr + low, mask=is_row, other=0.0)
    x_sin = tl.load(sin_ptr + low, mask=is_row, other=0.0)
    y_cos = tl.load(cos_ptr + high, mask=is_row, other=0.0)
    y_sin = tl.load(sin_ptr + high, mask=is_row, other=0.0)
    return x * x_cos + y * x_sin, y * y_cos + x * y_sin


@triton.jit
def store_halves(
    head_ptr: tl.tensor,
    x: tl.tensor,
    y: tl.tensor,
    is_row: tl.tensor,
    D: tl.constexpr,
    DTYPE: tl.constexpr,
) -> None:
    """Store halves [TILE, D / 2] of heads at `head_ptr` [TILE, 1]."""
    low = tl.arange(0, D // 2)[None, :]
    tl.store(head_ptr + low, x.to(DTYPE), mask=is_row)
    tl.store(head_ptr + D // 2 + low, y.to(DTYPE), mask=is_row)


@triton.jit
def move(
    cache_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    sources_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    tile: tl.tensor,
    count: tl.tensor,
    ENTRY: tl.constexpr,
    PITCH: tl.constexpr,
    WIDTH: tl.constexpr,
    MOVES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Copy entries [ENTRY], PITCH elements apart, of a sequence within a head's cache; WIDTH is a
    power of two.

    These are the entries whose source is the slot of one of this tile's rows; the first tile also
    copies those whose source is the slot of none of the sequence's `count` rows. All are read
    before this program writes any.
    """
    entry, column = tl.arange(0, MOVES)[:, None], tl.arange(0, WIDTH)[None, :]
    source, target = tl.load(sources_ptr + entry), tl.load(targets_ptr + entry)
    mover = tl.zeros((MOVES,), tl.int32)
    for start in range(0, count, SEARCHED):
        row = start + tl.arange(0, SEARCHED)[None, :]
        slot = tl.load(slots_ptr + row, mask=row < count, other=-1)
        mover = tl.maximum(mover, tl.max(tl.where(slot == source, row // TILE, 0), axis=1))
    differs = (source != target) & (mover[:, None] == tile) & (column < ENTRY)
    x = tl.load(cache_ptr + source * PITCH + column, mask=differs, other=0.0)
    tl.debug_barrier()
    tl.store(cache_ptr + target * PITCH + column, x, mask=differs)


@triton.jit
def store_head(
    cache_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    sources_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    part: tl.tensor,
    tile: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
    PITCH: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    MOVES: tl.constexpr,
    IS_KEY: tl.constexpr,
    HAS_NORM: tl.constexpr,
    EPS: tl.constexpr,
    TILE: tl.constexpr,
    DTYPE: tl.constexpr,
) -> None:
    """Store tile `tile` of part `part` of `count` rows, for the head with columns from `first` on.

    With MOVES a part is a sequence, whose entries are moved first.
    """
    step, column = tl.arange(0, TILE)[:, None], tl.arange(0, D)[None, :]
    row = part * count + tile * TILE + step
    is_row = tile * TILE + step < count
    slot = tl.load(slots_ptr + row, mask=is_row, other=0)
    # Loaded before anything is moved: no load is moved before a store.
    if IS_KEY:
        x, y = rotated(parts_ptr, weight_ptr, cos_ptr, sin_ptr, first, row, rows, is_row,
                       D, SPLITS, WIDTH, HAS_NORM, EPS, DTYPE)  # fmt: skip
    else:
        x = rounded_sum(parts_ptr, row, rows, first + column, is_row, SPLITS, WIDTH, DTYPE)
        if HAS_NORM:
            x *= inverse_rms(x * x, D, EPS)
    if MOVES:
        entries = part * MOVES
        move(cache_ptr, slots_ptr + part * count, sources_ptr + entries, targets_ptr + entries,
             tile, count, ENTRY, PITCH, D if ENTRY == D else 2 * D, MOVES, TILE)  # fmt: skip
    if ENTRY != D:
        if IS_KEY:
            x = tl.reshape(tl.permute(tl.join(x, y), (0, 2, 1)), (TILE, D))
        store_quantized(cache_ptr, slot, is_row, x.to(DTYPE).to(tl.float32), D, PITCH)
    elif IS_KEY:
        store_halves(cache_ptr + slot * PITCH, x, y, is_row, D, DTYPE)
    else:
        tl.store(cache_ptr + slot * PITCH + column, x.to(DTYPE), mask=is_row)


@triton.jit(do_not_specialize=["rows", "batch"])
def norm_rope_store_kernel(
    parts_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    q_weight_ptr: tl.tensor,
    k_weight_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    sources_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    q_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    rows: tl.tensor,
    batch: tl.tensor,
    OF_HEAD: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    ENTRY: tl.constexpr,
    PITCH: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    MOVES: tl.constexpr,
    HAS_NORM: tl.constexpr,
    NORM_VALUES: tl.constexpr,
    EPS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Process queries or store keys or values.

    Programs are ordered: queries by head and tile, then keys and values by head, sequence and tile.
    If nothing is moved, all rows count as one sequence.
    """
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    program = tl.program_id(0)
    queries = tl.cdiv(rows, TILE) * HEADS
    if program < queries:
        head = program % HEADS
        row = program // HEADS * TILE + tl.arange(0, TILE)[:, None]
        x, y = rotated(parts_ptr, q_weight_ptr, cos_ptr, sin_ptr, head * D, row, rows, row < rows,
                       D, SPLITS, WIDTH, HAS_NORM, EPS, dtype)  # fmt: skip
        store_halves(q_ptr + (row * HEADS + head) * D, x, y, row < rows, D, dtype)
    else:
        program -= queries
        head = program // 2 % KV_HEADS
        count = rows // batch
        tiles = tl.cdiv(count, TILE)
        part = program // 2 // KV_HEADS // tiles
        tile = program // 2 // KV_HEADS % tiles
        cache = head.to(tl.int64) * OF_HEAD
        if program % 2 == 0:
            store_head(k_cache_ptr + cache, parts_ptr, k_weight_ptr, cos_ptr, sin_ptr, slots_ptr,
                       sources_ptr, targets_ptr, part, tile, (HEADS + head) * D, count, rows,
                       D, ENTRY, PITCH, WIDTH, SPLITS, MOVES, True, HAS_NORM, EPS, TILE,
                       dtype)  # fmt: skip
        else:
            first = WIDTH - (KV_HEADS - head) * D
            store_head(v_cache_ptr + cache, parts_ptr, k_weight_ptr, cos_ptr, sin_ptr, slots_ptr,
                       sources_ptr, targets_ptr, part, tile, first, count, rows,
                       D, ENTRY, PITCH, WIDTH, SPLITS, MOVES, False, NORM_VALUES, EPS, TILE,
                       dtype)  # fmt: skip


def launch(
    parts: Tensor,
    angles: tuple[Tensor, Tensor],
    weights: tuple[Tensor | None, Tensor | None],
    caches: tuple[Tensor, Tensor],
    row_slots: Tensor,
    moves: tuple[Tensor | None, Tensor | None],
    heads: int,
    norm_values: bool,
    eps: float,
    dtype: torch.dtype,
    unless: int = 0,
) -> Tensor:
    """Launch the kernel; arguments and result are those of `op.norm_rope_store`.

    Returns queries [1, R, heads, D]. If `unless` is 1, nothing is launched or written.
    """
    (cos, sin), (q_weight, k_weight), (k_cache, v_cache) = angles, weights, caches
    sources, targets = moves
    kv_heads, _, entry = k_cache.shape
    of_head, pitch, _ = k_cache.stride()
    head_dim = head_dim_of(k_cache)
    splits, _, rows, width = parts.shape
    q = parts.new_empty((1, rows, heads, head_dim), dtype=dtype)
    batch, moved = (1, 0) if sources is None else sources.shape
    tiles = triton.cdiv(rows, TILE) * heads
    stored = triton.cdiv(rows // batch, TILE) * batch * kv_heads
    wrap_triton(norm_rope_store_kernel)[((tiles + 2 * stored) * (1 - unless),)](
        parts.contiguous(),
        cos.contiguous(),
        sin.contiguous(),
        cos if q_weight is None else q_weight,
        cos if k_weight is None else k_weight,
        row_slots.contiguous(),
        row_slots if sources is None else sources.contiguous(),
        row_slots if targets is None else targets.contiguous(),
        q,
        k_cache,
        v_cache,
        rows,
        batch,
        OF_HEAD=of_head,
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=head_dim,
        ENTRY=entry,
        PITCH=pitch,
        WIDTH=width,
        SPLITS=splits,
        MOVES=moved,
        HAS_NORM=q_weight is not None,
        NORM_VALUES=norm_values,
        EPS=eps,
        TILE=TILE,
        num_warps=WARPS,
    )
    return q
