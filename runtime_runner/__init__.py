"""The runner: opens artifacts and generates text with them.

Names are resolved on first use, so that `eagle-run --help` need not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.frontend.conversation import Conversation
    from eagle_aot.runtime_runner.load import load_artifact
    from eagle_aot.runtime_runner.runner import Runner

__all__ = ["Conversation", "Runner", "load_artifact"]

_MODULES = {"Conversation": "frontend.conversation", "Runner": "runner", "load_artifact": "load"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
