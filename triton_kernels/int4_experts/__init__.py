"""Products with the INT4 weights of experts (W4A16); each row takes a few of them."""

from eagle_aot.triton_kernels.int4_experts.api import int4_experts
from eagle_aot.triton_kernels.int4_experts.packing import PackedExpertsWeight, pack_experts
from eagle_aot.triton_kernels.int4_experts.reference import int4_experts_reference

__all__ = ["PackedExpertsWeight", "int4_experts", "int4_experts_reference", "pack_experts"]
