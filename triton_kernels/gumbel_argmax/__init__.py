"""Token choice with Gumbel noise that depends only on a key and the token id."""

from eagle_aot.triton_kernels.gumbel_argmax.op import gumbel_argmax, perturbed
from eagle_aot.triton_kernels.gumbel_argmax.reference import gumbel_reference

__all__ = ["gumbel_argmax", "gumbel_reference", "perturbed"]
