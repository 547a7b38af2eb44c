"""Attention of the rows of a prompt over its sequence's cache."""

from eagle_aot.triton_kernels.sdpa_prompt.op import is_servable, sdpa_prompt
from eagle_aot.triton_kernels.sdpa_prompt.reference import sdpa_prompt_reference

__all__ = ["is_servable", "sdpa_prompt", "sdpa_prompt_reference"]
