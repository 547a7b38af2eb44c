"""The `k` columns with the largest logits of each row and their log probabilities, on any device.

Neither importing nor running this package needs triton: if kernels cannot be launched, PyTorch's
own operators do the same, more slowly.
"""

from torch import Tensor

from eagle_aot.triton_kernels.device import launches_for


def topk_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the largest of `logits` float [..., V], in descending order.

    Returns log probabilities float32 [..., k] and columns int64 [..., k]. On a GPU equal logits are
    in the order of their columns.
    """
    if not launches_for(logits):
        return topk_logprobs_reference(logits, k)
    from eagle_aot.triton_kernels.topk_logprobs.kernel import launch

    scores, columns = launch(logits.flatten(0, -2), k)
    shape = *logits.shape[:-1], k
    return scores.view(shape), columns.view(shape)


def topk_logprobs_reference(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return what `topk_logprobs` returns, [..., k], with equal logits in any order."""
    scores, columns = logits.float().log_softmax(dim=-1).topk(k, dim=-1)
    return scores, columns
