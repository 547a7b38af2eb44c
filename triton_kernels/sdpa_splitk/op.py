"""`eagle_aot::sdpa_splitk`, attention of a few rows over a cache as one operator.

Traced by torch.export it is one node of the graph. Lowered for a GPU it becomes the kernels of
`kernel.py`; on a CPU it is the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.sdpa_splitk.reference import sdpa_reference
from eagle_aot.triton_kernels.sdpa_splitk.tiling import is_tileable

DTYPES = (torch.bfloat16, torch.float16)
"""What the kernels are made for."""

# `triton_op` looks for the kernels behind the operator at once, and warns where triton is not
# installed. There the operator is a plain one, without a kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::sdpa_splitk", mutates_args={})
def sdpa_splitk(
    q: Tensor, k: Tensor, v: Tensor, input_pos: Tensor, scale: float, window: int
) -> Tensor:
    """`q` [1, M, heads, D] of `DTYPES`, M at least 1 -> the same shape and dtype, contiguous.

    `k`, `v` [1, kv_heads, slots, D] are a cache as in `reference.py` that holds the rows' own
    entries too. Head h reads key/value head h // (heads / kv_heads); scores are multiplied by
    `scale`. `input_pos` int64 [M] are the rows' positions, which count up by one and stay below
    2^30; they are read on the device, and no shape depends on them. Softmax and sums are float32. A
    row's bits depend on its position and on the entries that it sees alone, not on M, as long as
    all entries up to the last row's are finite. Raises RuntimeError for a batch, for a ring of
    another size than `2 * window`, and for more than the `window + 1` rows that it holds all keys
    of.
    """
    _check(q, k, window)
    from eagle_aot.triton_kernels.sdpa_splitk.kernel import launch

    return launch(q, k, v, input_pos, scale, window)


@sdpa_splitk.register_kernel("cpu")
def _cpu(q: Tensor, k: Tensor, v: Tensor, input_pos: Tensor, scale: float, window: int) -> Tensor:
    _check(q, k, window)
    return sdpa_reference(q, k, v, input_pos, scale, window).contiguous()


@sdpa_splitk.register_fake
def _shape(q: Tensor, k: Tensor, v: Tensor, input_pos: Tensor, scale: float, window: int) -> Tensor:
    _check(q, k, window)
    return q.new_empty(q.shape)


def _check(q: Tensor, k: Tensor, window: int) -> None:
    torch._check(q.shape[0] == 1, lambda: "sdpa_splitk serves one sequence")
    if not window:
        return
    torch._check(
        k.shape[2] == 2 * window,
        lambda: f"a ring for a window of {window} has {2 * window} slots, not {k.shape[2]}",
    )
    torch._check(
        q.shape[1] <= window + 1,
        lambda: f"a ring for a window of {window} serves {window + 1} rows",
    )


def is_servable(q: Tensor, k: Tensor) -> bool:
    """Whether the operator has a kernel for this kind of layer, apart from M.

    `q` [1, M, heads, D], `k` [1, kv_heads, slots, D]; of dtypes and static shapes only.
    """
    same = q.dtype == k.dtype and q.dtype in DTYPES
    return same and q.shape[0] == 1 and is_tileable(q.shape[2], k.shape[1], q.shape[3])
