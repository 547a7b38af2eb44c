"""The router's choice as one operator: the experts of each row and their weights."""

from eagle_aot.triton_kernels.choose_experts.op import choose_experts
from eagle_aot.triton_kernels.choose_experts.reference import choose_experts_reference

__all__ = ["choose_experts", "choose_experts_reference"]
