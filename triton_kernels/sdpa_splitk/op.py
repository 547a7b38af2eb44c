"""`eagle_aot::sdpa_splitk`, attention of the rows of several sequences as one operator.

It is one node of a graph traced by torch.export. Lowered for a GPU it becomes the kernels of
`kernel.py`; on a CPU it runs the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.kv_int8 import head_dim_of
from eagle_aot.triton_kernels.sdpa_splitk.reference import sdpa_reference
from eagle_aot.triton_kernels.sdpa_splitk.tiling import TAIL, is_tileable

DTYPES = (torch.bfloat16, torch.float16)
"""Dtypes that the kernels support."""

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::sdpa_splitk", mutates_args={})
def sdpa_splitk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    sequences: Tensor,
    tail: Tensor,
    scale: float,
    window: int,
    ring: int,
) -> Tensor:
    """Attend with `q` [B, T, heads, D], T rows of each of B sequences; same shape, contiguous.

    `q`, `k` and `v` have one of `DTYPES`, or `k` and `v` are INT8 entries. `k`, `v` [kv_heads, S,
    slots, D] are the caches of S sequences, as in `reference.py`; the entries of the rows are
    already stored. Head h reads key/value head h // (heads / kv_heads); scores are multiplied by
    `scale`. `window` and `ring` are 0 for flat caches; slots after the first `ring` of a ring are
    never read. The other inputs are int64 and read on the device; no shape depends on their values:

    - `positions` [B, T], below 2^30: the position of each row in its sequence. -1 is padding, whose
      output is 0. Positions of one sequence count up by one, or are within `TAIL` of each other;
    - `sequences` [B]: the index of each sequence's cache; any value for padding only;
    - `tail` [B, T, TAIL]: logical slots of the last `TAIL` tokens on the row's path in order of
      position, its own last; -1 before the start of the sequence. In a ring they are taken modulo
      `ring`.

    Softmax and sums are float32. A row's bits depend on its position and on the entries that it
    sees, in order of position. They do not depend on the slots of its tail, or on other rows,
    sequences and slots, as long as the entries that other rows see are finite. Raises RuntimeError
    for another length of tails, for a ring that does not fit its cache, and for more rows than the
    ring holds all keys of.
    """
    _check(q, k, tail, window, ring)
    from eagle_aot.triton_kernels.sdpa_splitk.kernel import launch

    return launch(q, k, v, positions, sequences, tail, scale, window, ring)


@sdpa_splitk.register_kernel("cpu")
def _cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    sequences: Tensor,
    tail: Tensor,
    scale: float,
    window: int,
    ring: int,
) -> Tensor:
    _check(q, k, tail, window, ring)
    return sdpa_reference(q, k, v, positions, sequences, tail, scale, window, ring)


@sdpa_splitk.register_fake
def _shape(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    sequences: Tensor,
    tail: Tensor,
    scale: float,
    window: int,
    ring: int,
) -> Tensor:
    _check(q, k, tail, window, ring)
    return q.new_empty(q.shape)


def _check(q: Tensor, k: Tensor, tail: Tensor, window: int, ring: int) -> None:
    depth, rows, slots = tail.shape[2], q.shape[1], k.shape[2]
    torch._check(depth == TAIL, lambda: f"a tail has {TAIL} slots, not {depth}")
    torch._check(bool(ring) == bool(window), lambda: "a window needs a ring, and a ring a window")
    if not window:
        return
    torch._check(
        window <= ring <= slots,
        lambda: f"a ring of {ring} slots for a window of {window} in a cache of {slots}",
    )
    max_rows = ring - window + 1
    torch._check(
        rows <= max_rows,
        lambda: f"a ring of {ring} slots for a window of {window} serves {max_rows} rows",
    )


def is_servable(heads: int, k: Tensor) -> bool:
    """Whether the kernels support `heads` query heads and keys `k` [kv_heads, ..., D]."""
    return k.dtype in (*DTYPES, torch.int8) and is_tileable(heads, k.shape[0], head_dim_of(k))
