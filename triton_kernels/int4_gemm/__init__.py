"""Linear layers over group-quantised INT4 weights (W4A16)."""

from eagle_aot.triton_kernels.int4_gemm.api import int4_linear, matvec_max_m, set_matvec_max_m
from eagle_aot.triton_kernels.int4_gemm.reference import dequantise_int4

__all__ = ["dequantise_int4", "int4_linear", "matvec_max_m", "set_matvec_max_m"]
