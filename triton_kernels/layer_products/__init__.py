"""The products and norms between two attentions of a decoder as one kernel, for few rows."""

from eagle_aot.triton_kernels.layer_products.op import layer_products

__all__ = ["layer_products"]
