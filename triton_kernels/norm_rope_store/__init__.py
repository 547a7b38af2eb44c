"""Normalises and rotates the heads of a layer's attention and stores its keys and values."""

from eagle_aot.triton_kernels.norm_rope_store.op import norm_rope_store, norm_rope_store_reference

__all__ = ["norm_rope_store", "norm_rope_store_reference"]
