"""The choice of a token under Gumbel noise that is a function of a key and the token alone."""

from eagle_aot.triton_kernels.gumbel_argmax.op import gumbel_argmax, perturbed
from eagle_aot.triton_kernels.gumbel_argmax.reference import gumbel_reference

__all__ = ["gumbel_argmax", "gumbel_reference", "perturbed"]
