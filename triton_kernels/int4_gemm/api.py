"""The INT4 linear and its dispatch between few and many rows.

Up to `matvec_max_m()` rows a linear is bound by reading its weight and takes the small-M path;
above, it dequantises once and multiplies. The choice is made while a graph is traced, from the
*range* of its row count: a range on both sides of the limit is an error there, so every method
must be exported on one side of it.
"""

from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm.op import SMALL_M_LIMIT as SMALL_M_LIMIT
from eagle_aot.triton_kernels.int4_gemm.op import int4_small_m, is_servable
from eagle_aot.triton_kernels.int4_gemm.reference import int4_linear_reference

MATVEC_MAX_M = 4
"""Rows up to which the small-M path is taken; raised by `set_matvec_max_m` for one export."""


def matvec_max_m() -> int:
    """The current limit of the small-M path, in rows."""
    return MATVEC_MAX_M


def set_matvec_max_m(rows: int) -> int:
    """Set the limit and return the one before it. Raises ValueError outside [1, 8]."""
    global MATVEC_MAX_M
    if not 1 <= rows <= SMALL_M_LIMIT:
        raise ValueError(f"MATVEC_MAX_M must be in [1, {SMALL_M_LIMIT}], got {rows}")
    previous, MATVEC_MAX_M = MATVEC_MAX_M, rows
    return previous


def int4_linear(x: Tensor, qdata: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """`x` [..., M, K] -> [..., M, N] in x's dtype; weight layout as in `reference.py`.

    Batches, float64 inputs and weights in groups of an odd size are dequantised at any M.
    """
    if x.shape[-2] <= MATVEC_MAX_M and is_servable(x, qdata, scale):
        return int4_small_m(x, qdata, scale, zero_point)
    return int4_linear_reference(x, qdata, scale, zero_point)
