"""`eagle_aot::sdpa_prompt`, attention of consecutive rows of one sequence as one operator.

It is one node of a graph traced by torch.export. Lowered for a GPU it becomes the kernel of
`kernel.py`; on a CPU it runs the reference. Neither importing this module nor tracing needs triton.
"""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.library import custom_op, triton_op

from eagle_aot.triton_kernels.kv_int8 import head_dim_of, read_entries
from eagle_aot.triton_kernels.sdpa_prompt.tiling import is_tileable

DTYPES = (torch.bfloat16, torch.float16)
"""Dtypes that the kernel supports."""

# `triton_op` warns if triton is not installed; the operator then has no kernel for GPUs.
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
    """Attend with `q` [1, T, heads, D], T consecutive rows of a sequence; same shape, contiguous.

    `q`, `k` and `v` have one of `DTYPES`, or `k` and `v` are INT8 entries. `k`, `v` [kv_heads, S,
    slots, D] are the caches of S sequences; the entries of the rows are already stored. Head h
    reads key/value head h // (heads / kv_heads); scores are multiplied by `scale` > 0. A row sees
    all positions up to its own, or the last `window` of them. With a window, slots are positions
    modulo `ring`; without one, `window` and `ring` are 0. `input_pos` int64 [T] counts up by one,
    and `sequence` int64 [1] is the index of the cache; both are on the device. `last_visible` int64
    [T] is the last position that a row sees, if that is after its own and in the chunk: rows of an
    image see all of it.

    Softmax and sums are float32. A row's bits depend on its position and on the entries that it
    sees, not on its chunk, on other rows and slots, or on the length of the cache. Raises
    RuntimeError for a batch, and for a ring that cannot hold what the rows see.
    """
    _check(q, k, window, ring)
    from eagle_aot.triton_kernels.sdpa_prompt.kernel import launch

    return launch(q, k, v, input_pos, sequence, scale, window, ring, last_visible=last_visible)


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
    torch._check(q.shape[0] == 1, lambda: "a prompt has one sequence")
    torch._check(bool(ring) == bool(window), lambda: "a window needs a ring, and a ring a window")
    if not window:
        return
    slots, max_rows = k.shape[2], ring - window + 1
    torch._check(
        window <= ring <= slots,
        lambda: f"a ring of {ring} slots for a window of {window} in a cache of {slots}",
    )
    torch._check(
        q.shape[1] <= max_rows,
        lambda: f"a ring of {ring} slots for a window of {window} serves {max_rows} rows",
    )


def is_servable(heads: int, k: Tensor) -> bool:
    """Whether the kernel supports `heads` query heads and keys `k` [kv_heads, ..., D]."""
    return k.dtype in (*DTYPES, torch.int8) and is_tileable(heads, k.shape[0], head_dim_of(k))


def sdpa_prompt_reference(
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
    """Compute what `sdpa_prompt` does, [1, T, heads, D]; sums are float32, or float64 for float64.

    Slots that no row sees are not read; they may hold NaN.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    seen_to = input_pos if last_visible is None else torch.maximum(input_pos, last_visible)
    first, last = int(input_pos[0]), int(seen_to.max())
    position = torch.arange(max(0, first - window + 1) if window else 0, last + 1, device=q.device)
    slots = torch.remainder(position, ring) if ring else position
    keys, values = (read_entries(cache[:, int(sequence), slots], wide) for cache in (k, v))
    age = input_pos.unsqueeze(1) - position
    visible = (position <= seen_to.unsqueeze(1)) & ((age < window) if window else True)
    rows = q[0].transpose(0, 1).unflatten(0, (k.shape[0], -1)).to(wide)  # [kv_heads, group, T, D]
    scores = rows @ keys.unsqueeze(1).mT * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    attended = weights @ values.unsqueeze(1)
    return attended.flatten(0, 1).transpose(0, 1).unsqueeze(0).to(q.dtype).contiguous()
