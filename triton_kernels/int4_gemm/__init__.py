"""Linears over group-quantised INT4 weights (W4A16)."""

from eagle_aot.triton_kernels.int4_gemm.api import (
    FULL,
    FULL_IF_GATED,
    choose_splits,
    int4_gated_linear,
    int4_linear,
    int4_linear_parts,
    set_matvec_max_m,
)
from eagle_aot.triton_kernels.int4_gemm.packing import PackedInt4, pack, packable_group, unpack
from eagle_aot.triton_kernels.int4_gemm.reference import (
    GATED_ROWS,
    activate,
    dequantise_int4,
    int4_linear_reference,
)

__all__ = [
    "FULL", "FULL_IF_GATED", "GATED_ROWS", "PackedInt4", "activate", "choose_splits",
    "dequantise_int4", "int4_gated_linear", "int4_linear", "int4_linear_parts",
    "int4_linear_reference", "pack", "packable_group", "set_matvec_max_m", "unpack",
]  # fmt: skip
