"""Logits perturbed by Gumbel noise that depends only on a key and the token id, and their argmax.

`logits` float [R, V]; `scale` float32 [R] is 1 / temperature, or 0 for a row without noise; `keys`
int32 [R, 2] are the keys of each row's noise; `ids` int32 [V] are the token ids of the columns,
None if they are the column numbers. Importing this package needs no triton.
"""

from torch import Tensor

from eagle_aot.triton_kernels.gumbel_argmax.reference import gumbel_reference, perturbed_reference

__all__ = ["gumbel_argmax", "gumbel_reference", "perturbed"]


def perturbed(logits: Tensor, scale: Tensor, keys: Tensor, ids: Tensor | None = None) -> Tensor:
    """Return `logits * scale` plus each token's noise, float32 [R, V]."""
    if logits.device.type == "cpu":
        return perturbed_reference(logits, scale, keys, ids)
    from eagle_aot.triton_kernels.gumbel_argmax.kernel import launch_perturbed

    return launch_perturbed(logits, scale, keys, ids)


def gumbel_argmax(logits: Tensor, scale: Tensor, keys: Tensor, ids: Tensor | None = None) -> Tensor:
    """Return the column of the maximum of `perturbed`, the first of equals: int64 [R]."""
    if logits.device.type == "cpu":
        return perturbed_reference(logits, scale, keys, ids).argmax(dim=1)
    from eagle_aot.triton_kernels.gumbel_argmax.kernel import launch_argmax

    return launch_argmax(logits, scale, keys, ids)
