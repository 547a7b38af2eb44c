"""Attention of the rows of a prompt over the cache of their sequence."""

from eagle_aot.triton_kernels.sdpa_prompt.op import is_servable, sdpa_prompt, sdpa_prompt_reference

__all__ = ["is_servable", "sdpa_prompt", "sdpa_prompt_reference"]
