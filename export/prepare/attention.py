"""Which attention methods use: the project's operators, or stock ones."""

from eagle_aot.common.errors import SettingError
from eagle_aot.export.lowering.backend import XNNPACK

SPLITK, STOCK = "splitk", "stock"
PROMPT = "prompt"
"""What comes with the one for few rows: attention of a prompt's."""


def choose_attention(asked: str | None, backend: str) -> str:
    """`asked`, by default the operators for few rows and for prompts where the backend has them.

    Raises SettingError where it is asked for and the backend has not, and for an unknown one.
    """
    if asked not in (None, SPLITK, STOCK):
        raise SettingError(f"--attention {asked}: must be {SPLITK} or {STOCK}")
    if backend == XNNPACK and asked == SPLITK:
        raise SettingError("--attention splitk: its kernels run on CUDA; leave it out for xnnpack")
    return asked or (STOCK if backend == XNNPACK else SPLITK)
