"""Which attention methods use: the project's operators, or PyTorch's."""

from eagle_aot.common.errors import SettingError
from eagle_aot.export.spec import XNNPACK, Attention, Backend

SPLITK, STOCK = "splitk", "stock"
PROMPT = "prompt"
"""The operator for prompts that comes with `SPLITK`, the one for few rows."""


def choose_attention(requested: Attention | None, backend: Backend) -> Attention:
    """Return `requested`, by default the project's operators where the backend has them.

    Raises SettingError for the project's operators on a backend without them.
    """
    if backend == XNNPACK and requested == SPLITK:
        raise SettingError("attention splitk: its kernels run on CUDA; leave it out for xnnpack")
    return requested or ("stock" if backend == XNNPACK else "splitk")
