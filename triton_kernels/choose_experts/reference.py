"""The router's choice in eager PyTorch: the reference and the CPU path."""

import torch
from torch import Tensor


def choose_experts_reference(
    scores: Tensor, per_expert: Tensor | None, top_k: int, norm_topk_prob: bool
) -> tuple[Tensor, Tensor]:
    """Choose the experts of each row by `scores` [T, E]: weights float32 [T, k], ids int64 [T, k].

    Weights are probabilities among all experts; experts come in descending order of them, and equal
    ones in the order of `torch.topk`, as in transformers. With `norm_topk_prob` the weights of a
    row are divided by their sum; then they are multiplied by `per_expert` [E].
    """
    weights, ids = torch.topk(torch.softmax(scores, -1, torch.float32), top_k, dim=-1)
    if norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights if per_expert is None else weights * per_expert[ids], ids
