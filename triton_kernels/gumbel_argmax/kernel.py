"""Gumbel noise and argmax, or argmax alone, on a GPU; each logit is read once.

Importing this module needs triton. Products are not fused into sums, so that the bits are those of
the eager reference.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from eagle_aot.triton_kernels.gumbel_argmax.reference import FACTORS, SHIFTS
from eagle_aot.triton_kernels.gumbel_argmax.table import FIRST, HALF, REST_BITS, gumbel_table

BLOCK = 4096
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
NOISE = {
    **{f"SHIFT_{i}": shift for i, shift in enumerate(SHIFTS)},
    **{f"FACTOR_{i}": factor for i, factor in enumerate(FACTORS)},
    **{"REST": REST_BITS, "FIRST_ENTRY": FIRST, "ENTRIES": HALF},
}


@triton.jit
def perturb(
    logits: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    row: tl.tensor,
    scale_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    table_ptr: tl.tensor,
    HAS_IDS: tl.constexpr,
    SHIFT_0: tl.constexpr,
    SHIFT_1: tl.constexpr,
    SHIFT_2: tl.constexpr,
    FACTOR_0: tl.constexpr,
    FACTOR_1: tl.constexpr,
    FACTOR_2: tl.constexpr,
    REST: tl.constexpr,
    FIRST_ENTRY: tl.constexpr,
    ENTRIES: tl.constexpr,
) -> tl.tensor:
    """Return logits float32 [BLOCK] times the scale plus noise; the logits if the scale is 0."""
    scale = tl.load(scale_ptr + row)
    if HAS_IDS:
        x = tl.load(ids_ptr + column, mask=inside, other=0).to(tl.uint32)
    else:
        x = column.to(tl.uint32)
    x ^= tl.load(keys_ptr + row * 2).to(tl.uint32)
    x = (x ^ (x >> SHIFT_0)) * FACTOR_0 + tl.load(keys_ptr + row * 2 + 1).to(tl.uint32)
    x = (x ^ (x >> SHIFT_1)) * FACTOR_1
    x = (x ^ (x >> SHIFT_2)) * FACTOR_2
    bits = x.to(tl.int32, bitcast=True)
    sign = bits >> 31
    distance = (bits ^ sign).to(tl.float32).to(tl.int32, bitcast=True)
    entry = tl.maximum((distance >> REST) - FIRST_ENTRY, 0) + (sign & ENTRIES)
    rest = (distance & ((1 << REST) - 1)).to(tl.float32)
    base = tl.load(table_ptr + entry)
    noise = base + tl.load(table_ptr + 2 * ENTRIES + entry) * rest
    return tl.where(scale > 0, logits * scale + noise, logits)


@triton.jit
def gumbel_kernel(
    logits_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    keys_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    table_ptr: tl.tensor,
    out_ptr: tl.tensor,
    winners_ptr: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_IDS: tl.constexpr,
    PERTURBS: tl.constexpr,
    CHOOSES: tl.constexpr,
    SHIFT_0: tl.constexpr,
    SHIFT_1: tl.constexpr,
    SHIFT_2: tl.constexpr,
    FACTOR_0: tl.constexpr,
    FACTOR_1: tl.constexpr,
    FACTOR_2: tl.constexpr,
    REST: tl.constexpr,
    FIRST_ENTRY: tl.constexpr,
    ENTRIES: tl.constexpr,
) -> None:
    """Perturb one block of one row; with CHOOSES store only its maximum and that one's column.

    Without PERTURBS there is no noise.
    """
    row, block = tl.program_id(0), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < VOCAB
    at = row.to(tl.int64) * VOCAB + column
    noisy = tl.load(logits_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if PERTURBS:
        noisy = perturb(
            noisy, column, inside, row, scale_ptr, keys_ptr, ids_ptr, table_ptr, HAS_IDS,
            SHIFT_0, SHIFT_1, SHIFT_2, FACTOR_0, FACTOR_1, FACTOR_2, REST, FIRST_ENTRY, ENTRIES,
        )  # fmt: skip
    if CHOOSES:
        noisy = tl.where(inside, noisy, float("-inf"))
        largest, index = tl.max(
            noisy, axis=0, return_indices=True, return_indices_tie_break_left=True
        )
        tl.store(out_ptr + row * BLOCKS + block, largest)
        tl.store(winners_ptr + row * BLOCKS + block, block * BLOCK + index)
    else:
        tl.store(out_ptr + at, noisy, mask=inside)


@triton.jit
def winner_kernel(
    largest_ptr: tl.tensor,
    winners_ptr: tl.tensor,
    out_ptr: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Store the column of the largest of a row's BLOCKS of at most WIDTH, the first of equals."""
    row, block = tl.program_id(0), tl.arange(0, WIDTH)
    inside = block < BLOCKS
    at = row * BLOCKS + block
    largest = tl.load(largest_ptr + at, mask=inside, other=float("-inf"))
    winners = tl.load(winners_ptr + at, mask=inside, other=VOCAB)
    first = tl.min(tl.where(largest == tl.max(largest, axis=0), winners, VOCAB), axis=0)
    # Where all is NaN, which equals nothing, the column must still be one of the vocabulary.
    tl.store(out_ptr + row, tl.minimum(first, VOCAB - 1))


def launch_perturbed(logits: Tensor, scale: Tensor, keys: Tensor, ids: Tensor | None) -> Tensor:
    """Launch the kernel; arguments and result are those of `perturbed`, float32 [R, V]."""
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    _launch(logits, scale, keys, ids, out, None)
    return out


def launch_argmax(
    logits: Tensor,
    scale: Tensor | None = None,
    keys: Tensor | None = None,
    ids: Tensor | None = None,
) -> Tensor:
    """Launch both kernels; arguments and result are those of `gumbel_argmax`, int64 [R].

    Without `scale` and `keys` there is no noise.
    """
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    largest = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    winners = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _launch(logits, scale, keys, ids, largest, winners)
    width = triton.next_power_of_2(blocks)
    winner_kernel[(rows,)](
        largest, winners, out, VOCAB=vocab, BLOCKS=blocks, WIDTH=width, num_warps=1
    )
    return out


def _launch(
    logits: Tensor,
    scale: Tensor | None,
    keys: Tensor | None,
    ids: Tensor | None,
    out: Tensor,
    winners: Tensor | None,
) -> None:
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    gumbel_kernel[(rows, blocks)](
        logits.contiguous(),
        out if scale is None else scale.contiguous(),
        out if keys is None else keys.contiguous(),
        out if ids is None else ids,
        out if scale is None else gumbel_table(logits.device),
        out,
        out if winners is None else winners,
        VOCAB=vocab,
        BLOCKS=blocks,
        BLOCK=BLOCK,
        HAS_IDS=ids is not None,
        PERTURBS=scale is not None,
        CHOOSES=winners is not None,
        **NOISE,
        **OPTIONS,
    )
