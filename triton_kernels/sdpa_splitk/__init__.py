"""Attention of a few rows over flat or ring caches."""

from eagle_aot.triton_kernels.sdpa_splitk.op import is_servable, sdpa_splitk
from eagle_aot.triton_kernels.sdpa_splitk.reference import sdpa_reference, visible_slots

__all__ = ["is_servable", "sdpa_reference", "sdpa_splitk", "visible_slots"]
