"""`eagle_aot::sdpa_prompt`, attention of consecutive rows of one sequence as one operator.

Traced by torch.export it is one node of the graph. Lowered for a GPU it becomes the kernel of
`kernel.py`; on a CPU it is the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.sdpa_prompt.reference import sdpa_prompt_reference
from eagle_aot.triton_kernels.sdpa_prompt.tiling import is_tileable

DTYPES = (torch.bfloat16, torch.float16)
"""What the kernel is made for."""

# `triton_op` warns where triton is not installed; there the operator has no kernel for GPUs.
_operator = triton_op if find_spec("triton") else custom_op


@_operator("eagle_aot::sdpa_prompt", mutates_args={})
def sdpa_prompt(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_pos: Tensor,
    sequence: Tensor,
    scale: float,
    window: int,
    ring: int,
    last_visible: Tensor | None = None,
) -> Tensor:
    """`q` [1, T, heads, D] of `DTYPES`, T consecutive rows of a sequence -> the same, contiguous.

    `k`, `v` [kv_heads, S, slots, D] are the caches of S sequences, which hold the rows' own entries
    too. Head h reads key/value head h // (heads / kv_heads); scores are multiplied by `scale`,
    which is above 0. A row sees all positions up to its own, or the last `window` of them. With a
    window slots are positions modulo `ring`, else `window` and `ring` are 0. `input_pos` int64 [T]
    counts up by one, and `sequence` int64 [1] says which cache is read; both on the device.
    `last_visible` int64 [T] is the last position that each row sees, where that is behind its own
    and in the chunk: rows of a picture see all of it.

    Softmax and sums are float32. A row's bits depend on its position and on the entries that it
    sees: not on the chunk it is run in, the other rows and slots, or how long the cache is. Raises
    RuntimeError for a batch, and a ring that cannot hold what the rows see.
    """
    _check(q, k, window, ring)
    from eagle_aot.triton_kernels.sdpa_prompt.kernel import launch

    rows = input_pos, sequence
    return launch(q, k, v, *rows, scale, window, ring, last_visible=last_visible)


@sdpa_prompt.register_kernel("cpu")
def _cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_pos: Tensor,
    sequence: Tensor,
    scale: float,
    window: int,
    ring: int,
    last_visible: Tensor | None = None,
) -> Tensor:
    _check(q, k, window, ring)
    return sdpa_prompt_reference(q, k, v, input_pos, sequence, scale, window, ring, last_visible)


@sdpa_prompt.register_fake
def _shape(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_pos: Tensor,
    sequence: Tensor,
    scale: float,
    window: int,
    ring: int,
    last_visible: Tensor | None = None,
) -> Tensor:
    _check(q, k, window, ring)
    return q.new_empty(q.shape)


def _check(q: Tensor, k: Tensor, window: int, ring: int) -> None:
    torch._check(q.shape[0] == 1, lambda: "a prompt is of one sequence")
    torch._check(bool(ring) == bool(window), lambda: "a window is of a ring, and a ring has one")
    if not window:
        return
    slots, most = k.shape[2], ring - window + 1
    torch._check(
        window <= ring <= slots,
        lambda: f"a ring of {ring} slots for a window of {window} in a cache of {slots}",
    )
    torch._check(
        q.shape[1] <= most,
        lambda: f"a ring of {ring} slots for a window of {window} serves {most} rows",
    )


def is_servable(heads: int, k: Tensor) -> bool:
    """Whether the operator has a kernel for `heads` of queries and keys `k` [kv_heads, ..., D]."""
    return k.dtype in DTYPES and is_tileable(heads, k.shape[0], k.shape[-1])
