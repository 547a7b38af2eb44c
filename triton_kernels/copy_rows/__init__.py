"""Copies rows of a KV cache to other rows, keys and values in one kernel."""

from eagle_aot.triton_kernels.copy_rows.op import copy_rows, copy_rows_reference

__all__ = ["copy_rows", "copy_rows_reference"]
