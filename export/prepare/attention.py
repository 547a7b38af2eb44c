"""Which attention a round uses: its verification, and its drafter."""

from eagle_aot.common.errors import SettingError
from eagle_aot.export.lowering.backend import XNNPACK

SPLITK, STOCK = "splitk", "stock"


def choose_attention(asked: str | None, backend: str) -> str:
    """`asked`, by default the operator for few rows where the backend has it.

    Raises SettingError where it is asked for and the backend has not, and for an unknown one.
    """
    if asked not in (None, SPLITK, STOCK):
        raise SettingError(f"--attention {asked}: must be {SPLITK} or {STOCK}")
    if backend == XNNPACK and asked == SPLITK:
        raise SettingError("--attention splitk: its kernels run on CUDA; leave it out for xnnpack")
    return asked or (STOCK if backend == XNNPACK else SPLITK)
