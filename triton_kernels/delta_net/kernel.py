"""A gated delta net around its rule on a GPU: a program for a head of a text, or of a row.

Channels do not mix along a text, so the program that stores a head's rows also adds up what the
convolution takes of them, after a barrier. No sum depends on other rows. Importing this module
needs triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.delta_net.reference import UNIT_EPS
from eagle_aot.triton_kernels.norm_rope_store.kernel import rounded_sum

TILE, WARPS = 4, 4
"""Rows that a program processes at a time."""


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """Return log(1 + exp(x)), exact where that is small: y log(1 + y) / ((1 + y) - 1)."""
    y = tl.exp(-tl.abs(x))
    one_more = 1 + y
    log1p = tl.where(one_more == 1, y, tl.log(one_more) * y / tl.maximum(one_more - 1, 1e-30))
    return tl.maximum(x, 0.0) + log1p


@triton.jit(do_not_specialize=["rows", "all_rows"])
def delta_net_inputs_kernel(
    parts_ptr: tl.tensor,
    taps_weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    log_ptr: tl.tensor,
    inputs_ptr: tl.tensor,
    terms_ptr: tl.tensor,
    row_slots_ptr: tl.tensor,
    tap_slots_ptr: tl.tensor,
    exist_ptr: tl.tensor,
    sources_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    queries_ptr: tl.tensor,
    new_ptr: tl.tensor,
    rows: tl.tensor,
    all_rows: tl.tensor,
    SPLITS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    TAPS: tl.constexpr,
    MOVES: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    EPS: tl.constexpr,
) -> None:
    """Process one head's queries, keys, or values with its decays and rates, of one text."""
    KEYS: tl.constexpr = KEY_HEADS * K
    CHANNELS: tl.constexpr = 2 * KEYS + HEADS * V
    N: tl.constexpr = CHANNELS + HEADS * V + 2 * HEADS
    GATES: tl.constexpr = KEYS + HEADS * V
    W: tl.constexpr = GATES + 2 * HEADS
    DTYPE: tl.constexpr = taps_weight_ptr.dtype.element_ty
    text, head = tl.program_id(0), tl.program_id(1)
    is_value, is_query = head >= 2 * KEY_HEADS, head < KEY_HEADS
    value_head = tl.maximum(head - 2 * KEY_HEADS, 0)
    at = tl.arange(0, BLOCK)[None, :]
    inside = at < tl.where(is_value, V, K)
    channel = at + tl.where(is_value, 2 * KEYS + value_head * V, head * K)
    term = channel - KEYS
    kept = inside & (head >= KEY_HEADS)
    gate = GATES + value_head + tl.arange(0, 2)[None, :] * HEADS  # decays, then rates
    gated = is_value & (gate >= 0)
    if MOVES:
        move = text * MOVES + tl.arange(0, MOVES)[:, None]
        source, target = tl.load(sources_ptr + move), tl.load(targets_ptr + move)
        moved = tl.load(inputs_ptr + source * CHANNELS + channel, mask=inside)
        moved_terms = tl.load(terms_ptr + source * W + term, mask=kept)
        moved_gates = tl.load(terms_ptr + source * W + gate, mask=gated)
        tl.debug_barrier()  # slots of rows may be sources
        tl.store(inputs_ptr + target * CHANNELS + channel, moved, mask=inside)
        tl.store(terms_ptr + target * W + term, moved_terms, mask=kept)
        tl.store(terms_ptr + target * W + gate, moved_gates, mask=gated)
    for first in range(0, rows, TILE):
        number = first + tl.arange(0, TILE)[:, None]
        used = number < rows
        row = text * rows + number
        slot = tl.load(row_slots_ptr + row, mask=used, other=0)
        x = rounded_sum(parts_ptr, row, all_rows, channel, used & inside, SPLITS, N, DTYPE)
        tl.store(inputs_ptr + slot * CHANNELS + channel, x, mask=used & inside)
    tl.debug_barrier()  # what the convolution adds up is stored
    for first in range(0, rows, TILE):
        number = first + tl.arange(0, TILE)[:, None]
        used = number < rows
        row = text * rows + number
        total = tl.zeros((TILE, BLOCK), tl.float32)
        for tap in tl.static_range(TAPS):
            slot = tl.load(tap_slots_ptr + row * TAPS + tap, mask=used, other=0)
            there = tl.load(exist_ptr + row * TAPS + tap, mask=used, other=0) != 0
            x = tl.load(inputs_ptr + slot * CHANNELS + channel, mask=there & inside, other=0.0)
            weight = tl.load(taps_weight_ptr + channel * TAPS + tap, mask=inside, other=0.0)
            total += x * weight.to(tl.float32)
        mixed = total * tl.sigmoid(total)
        if not is_value:
            mixed *= tl.rsqrt(tl.sum(mixed * mixed, 1, keep_dims=True) + EPS)
        if is_query:
            tl.store(queries_ptr + row * KEYS + channel, mixed * K**-0.5, mask=used & inside)
        slot = tl.load(row_slots_ptr + row, mask=used, other=0)
        tl.store(new_ptr + row * W + term, mixed, mask=used & kept)
        tl.store(terms_ptr + slot * W + term, mixed, mask=used & kept)
        if is_value:
            column = CHANNELS + HEADS * V + value_head
            b = rounded_sum(parts_ptr, row, all_rows, column, used, SPLITS, N, DTYPE)
            a = rounded_sum(parts_ptr, row, all_rows, column + HEADS, used, SPLITS, N, DTYPE)
            bias = tl.load(bias_ptr + value_head).to(tl.float32)
            speed = tl.exp(tl.load(log_ptr + value_head).to(tl.float32))
            decay, rate = tl.exp(-speed * softplus(a + bias)), tl.sigmoid(b)
            for out in tl.static_range(2):
                place = new_ptr + row * W if out else terms_ptr + slot * W
                tl.store(place + GATES + value_head, decay, mask=used)
                tl.store(place + GATES + HEADS + value_head, rate, mask=used)


@triton.jit(do_not_specialize=["rows"])
def delta_net_output_kernel(
    read_ptr: tl.tensor,
    parts_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    SPLITS: tl.constexpr,
    HEADS: tl.constexpr,
    V: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    EPS: tl.constexpr,
) -> None:
    """Normalise one head of one row and multiply it by its gate."""
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, V)
    read = tl.load(read_ptr + (row * HEADS + head) * V + at)
    gate = rounded_sum(parts_ptr, row, rows, FIRST + head * V + at, at >= 0, SPLITS, WIDTH, DTYPE)
    normed = read * tl.rsqrt(tl.sum(read * read, 0) / V + EPS)
    normed *= tl.load(weight_ptr + at).to(tl.float32)
    out = normed * gate * tl.sigmoid(gate)
    tl.store(out_ptr + (row * HEADS + head) * V + at, out.to(DTYPE))


def launch_inputs(
    parts: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    buffers: tuple[Tensor, Tensor],
    row_slots: Tensor,
    taps: tuple[Tensor, Tensor],
    moves: tuple[Tensor | None, Tensor | None],
    key_dim: int,
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments and results are those of `op.delta_net_inputs`, [R, keys] and
    [R, W]."""
    (taps_weight, bias, log), (inputs, terms), (sources, targets) = weights, buffers, moves
    heads, channels, width = log.shape[0], inputs.shape[1], terms.shape[1]
    keys = channels - width + 2 * heads
    value_dim = (channels - 2 * keys) // heads
    all_rows = parts.shape[2]
    batch, moved = (1, 0) if sources is None else sources.shape
    queries = parts.new_empty(all_rows, keys, dtype=torch.float32)
    new = parts.new_empty(all_rows, width, dtype=torch.float32)
    wrap_triton(delta_net_inputs_kernel)[(batch, 2 * keys // key_dim + heads)](
        parts.contiguous(),
        taps_weight.contiguous(),
        bias,
        log,
        inputs,
        terms,
        row_slots.contiguous(),
        taps[0].contiguous(),
        taps[1].contiguous(),
        row_slots if sources is None else sources.contiguous(),
        row_slots if targets is None else targets.contiguous(),
        queries,
        new,
        all_rows // batch,
        all_rows,
        SPLITS=parts.shape[0],
        KEY_HEADS=keys // key_dim,
        HEADS=heads,
        K=key_dim,
        V=value_dim,
        TAPS=taps_weight.shape[2],
        MOVES=moved,
        BLOCK=triton.next_power_of_2(max(key_dim, value_dim)),
        TILE=TILE,
        EPS=UNIT_EPS,
        num_warps=WARPS,
    )
    return queries, new


def launch_output(read: Tensor, parts: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Launch the kernel; arguments and result are those of `op.delta_net_output`,
    [1, R, heads * value_dim]."""
    rows, heads, value_dim = read.shape
    splits, _, _, width = parts.shape
    out = weight.new_empty(1, rows, heads * value_dim)
    wrap_triton(delta_net_output_kernel)[(rows, heads)](
        read.contiguous(),
        parts.contiguous(),
        weight,
        out,
        rows,
        SPLITS=splits,
        HEADS=heads,
        V=value_dim,
        WIDTH=width,
        FIRST=width - 2 * heads - heads * value_dim,
        EPS=eps,
        num_warps=1,
    )
    return out
