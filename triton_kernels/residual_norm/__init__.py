"""The residual sum and the norms between two products of a decoder, as one operator."""

from eagle_aot.triton_kernels.residual_norm.op import residual_norm, residual_norm_reference

__all__ = ["residual_norm", "residual_norm_reference"]
