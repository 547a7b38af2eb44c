"""`eagle_aot::sdpa_splitk`, attention of the rows of several sequences as one operator.

Traced by torch.export it is one node of the graph. Lowered for a GPU it becomes the kernels of
`kernel.py`; on a CPU it is the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.sdpa_splitk.reference import sdpa_reference
from eagle_aot.triton_kernels.sdpa_splitk.tiling import TAIL, is_tileable

DTYPES = (torch.bfloat16, torch.float16)
"""What the kernels are made for."""

# `triton_op` looks for the kernels behind the operator at once, and warns where triton is not
# installed. There the operator is a plain one, without a kernel for GPUs.
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
    """`q` [B, T, heads, D] of `DTYPES`, T rows of each of B sequences -> the same, contiguous.

    `k`, `v` [kv_heads, S, slots, D] are the caches of S sequences, as in `reference.py`; they hold
    the rows' own entries too. Head h reads key/value head h // (heads / kv_heads); scores are
    multiplied by `scale`. `window` and `ring` are 0 for flat caches; the slots behind a ring's
    first `ring` are never read. All that follows is int64, read on the device, and no shape depends
    on it:

    - `positions` [B, T], below 2^30: where a row stands in its text. -1 is padding, which comes out
      as zeros. Those of one sequence count up by one, or lie within `TAIL` of each other;
    - `sequences` [B]: which of the S caches is read. Of padding alone it may be any;
    - `tail` [B, T, TAIL]: logical slots of the last `TAIL` tokens of the row's own path in the
      order of their positions, its own last; -1 before the text's beginning. In a ring they are
      taken modulo `ring`.

    Softmax and sums are float32. A row's bits depend on its position and on the entries that it
    sees, in the order of positions: not on where its tail lies, nor on the other rows, sequences
    and slots, as long as the entries that these rows see are finite. Raises RuntimeError for
    another length of tails, for a ring that does not fit its cache, and for more rows than it holds
    all keys of.
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
    torch._check(bool(ring) == bool(window), lambda: "a window is of a ring, and a ring has one")
    if not window:
        return
    torch._check(
        window <= ring <= slots,
        lambda: f"a ring of {ring} slots for a window of {window} in a cache of {slots}",
    )
    most = ring - window + 1
    torch._check(
        rows <= most,
        lambda: f"a ring of {ring} slots for a window of {window} serves {most} rows",
    )


def is_servable(heads: int, k: Tensor) -> bool:
    """Whether the operator has a kernel for `heads` of queries and keys `k` [kv_heads, ..., D]."""
    return k.dtype in DTYPES and is_tileable(heads, k.shape[0], k.shape[-1])
