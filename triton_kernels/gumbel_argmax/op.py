"""Logits with noise, and the largest of them, on any device.

`logits` float [R, V]; `scale` float32 [R], 1 / temperature, or 0 for a row that is taken as it is;
`keys` int32 [R, 2], of each row's noise; `ids` int32 [V], the tokens that the columns stand for,
None where they are the columns' numbers. Importing this module needs no triton.
"""

from torch import Tensor

from eagle_aot.triton_kernels.gumbel_argmax.reference import perturbed_reference


def perturbed(logits: Tensor, scale: Tensor, keys: Tensor, ids: Tensor | None = None) -> Tensor:
    """`logits * scale` and each token's noise: float32 [R, V]."""
    if logits.device.type == "cpu":
        return perturbed_reference(logits, scale, keys, ids)
    from eagle_aot.triton_kernels.gumbel_argmax.kernel import launch_perturbed

    return launch_perturbed(logits, scale, keys, ids)


def gumbel_argmax(logits: Tensor, scale: Tensor, keys: Tensor, ids: Tensor | None = None) -> Tensor:
    """The column of the largest of `perturbed`, the first of equals: int64 [R]."""
    if logits.device.type == "cpu":
        return perturbed_reference(logits, scale, keys, ids).argmax(dim=1)
    from eagle_aot.triton_kernels.gumbel_argmax.kernel import launch_argmax

    return launch_argmax(logits, scale, keys, ids)
