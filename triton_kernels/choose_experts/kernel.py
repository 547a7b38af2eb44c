"""The router's choice on a GPU: one program a row.

A score and its expert are packed into one integer, as in `topk_logprobs/kernel.py`. Importing this
module needs triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from eagle_aot.triton_kernels.topk_logprobs.kernel import pack_logits, unpack_logits


@triton.jit
def choose_experts_kernel(
    scores_ptr: tl.tensor,
    per_expert_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    EXPERTS: tl.constexpr,
    MOST: tl.constexpr,
    TOP_K: tl.constexpr,
    RANKS: tl.constexpr,
    NORM: tl.constexpr,
    PER_EXPERT: tl.constexpr,
) -> None:
    """Choose TOP_K of the EXPERTS of one row. MOST and RANKS are powers of two, as many or more."""
    row = tl.program_id(0).to(tl.int64)
    expert, rank = tl.arange(0, MOST), tl.arange(0, RANKS)
    inside = expert < EXPERTS
    scores = tl.load(scores_ptr + row * EXPERTS + expert, mask=inside, other=float("-inf"))
    scores = scores.to(tl.float32)
    least = tl.full((MOST,), -0x8000000000000000, tl.int64)
    best = tl.topk(tl.where(inside, pack_logits(scores, expert), least), RANKS)
    largest = tl.max(scores, 0)
    weights = tl.exp(unpack_logits(best) - largest)
    if NORM:
        total = tl.sum(tl.where(rank < TOP_K, weights, 0.0), 0)
    else:
        total = tl.sum(tl.exp(scores - largest), 0)
    weights = weights / total
    ids = 0x7FFFFFFF - (best & 0xFFFFFFFF)
    chosen = rank < TOP_K
    if PER_EXPERT:
        weights *= tl.load(per_expert_ptr + ids, mask=chosen, other=0.0).to(tl.float32)
    tl.store(weights_ptr + row * TOP_K + rank, weights, mask=chosen)
    tl.store(ids_ptr + row * TOP_K + rank, ids, mask=chosen)


def launch(
    scores: Tensor, per_expert: Tensor | None, top_k: int, norm_topk_prob: bool
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments and results are those of `op.choose_experts`, [T, k] each."""
    rows, experts = scores.shape
    scores = scores.contiguous()
    weights = scores.new_empty((rows, top_k), dtype=torch.float32)
    ids = scores.new_empty((rows, top_k), dtype=torch.int64)
    wrap_triton(choose_experts_kernel)[(rows,)](
        scores,
        scores if per_expert is None else per_expert,
        weights,
        ids,
        EXPERTS=experts,
        MOST=triton.next_power_of_2(max(experts, 2)),
        TOP_K=top_k,
        RANKS=triton.next_power_of_2(max(top_k, 2)),  # topk needs 2
        NORM=norm_topk_prob,
        PER_EXPERT=per_expert is not None,
        num_warps=2,
    )
    return weights, ids
