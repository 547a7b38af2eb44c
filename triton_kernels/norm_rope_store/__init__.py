"""The heads of a layer's attention: normalised, rotated, keys and values stored, as one kernel."""

from eagle_aot.triton_kernels.norm_rope_store.op import norm_rope_store
from eagle_aot.triton_kernels.norm_rope_store.reference import norm_rope_store_reference

__all__ = ["norm_rope_store", "norm_rope_store_reference"]
