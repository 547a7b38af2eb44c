"""Which attention the methods use: the project's operators, or stock ones."""

from eagle_aot.common.errors import SettingError
from eagle_aot.export.lowering.backend import XNNPACK

SPLITK, STOCK = "splitk", "stock"
PROMPT = "prompt"
"""The operator for prompts, which comes with the one for few rows."""


def choose_attention(attention: str | None, backend: str) -> str:
    """Return `attention`; if None, the project's operators where the backend has them.

    Raises SettingError for an unknown value, and for one that the backend does not have.
    """
    if attention not in (None, SPLITK, STOCK):
        raise SettingError(f"--attention {attention}: must be {SPLITK} or {STOCK}")
    if backend == XNNPACK and attention == SPLITK:
        raise SettingError("--attention splitk: its kernels run on CUDA; leave it out for xnnpack")
    return attention or (STOCK if backend == XNNPACK else SPLITK)
