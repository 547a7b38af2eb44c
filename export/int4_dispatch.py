"""The INT4 dispatch limit during an export."""

from collections.abc import Iterator
from contextlib import contextmanager

from eagle_aot.triton_kernels.int4_gemm import set_matvec_max_m


@contextmanager
def matvec_max_m_raised(rows: int) -> Iterator[None]:
    """Let linears of up to `rows` rows take the small-M path while tracing.

    The limit before it is restored on every exit, exceptions included.
    """
    previous = set_matvec_max_m(rows)
    try:
        yield
    finally:
        set_matvec_max_m(previous)
