"""The `k` columns of each row whose logits are largest, on any device.

Importing this module needs no triton, and neither does running it: where kernels cannot be
launched, PyTorch's own operators do the same, more slowly.
"""

from torch import Tensor

from eagle_aot.triton_kernels.device import launches_kernels


def topk_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of `logits` float [..., V], the largest first: log probabilities float32 [..., k], and
    columns int64 [..., k], of which the first of equals comes first on a GPU."""
    if logits.device.type == "cpu" or not launches_kernels():
        return topk_logprobs_reference(logits, k)
    from eagle_aot.triton_kernels.topk_logprobs.kernel import launch

    scores, columns = launch(logits.flatten(0, -2), k)
    shape = *logits.shape[:-1], k
    return scores.view(shape), columns.view(shape)


def topk_logprobs_reference(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same in eager PyTorch, with equals in any order."""
    scores, columns = logits.float().log_softmax(dim=-1).topk(k, dim=-1)
    return scores, columns
