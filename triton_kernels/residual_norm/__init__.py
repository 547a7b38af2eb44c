"""What lies between two products of a decoder: the residual sum and its norms, as one operator."""

from eagle_aot.triton_kernels.residual_norm.op import residual_norm
from eagle_aot.triton_kernels.residual_norm.reference import residual_norm_reference

__all__ = ["residual_norm", "residual_norm_reference"]
