"""EAGLE-3 speculative decoding, compiled ahead of time: checkpoints in, one `.pte` out.

Names are resolved on first use, so that `import eagle_aot` and commands need not import torch.
`eagle_aot.export` is the package of that name, which may be called as a function.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle_aot.common.errors import EagleError
    from eagle_aot.export import export_artifact as export
    from eagle_aot.export.spec import ExportSpec
    from eagle_aot.runtime_runner.async_runner import AsyncRunner
    from eagle_aot.runtime_runner.frontend.conversation import Conversation
    from eagle_aot.runtime_runner.frontend.generation import Result
    from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
    from eagle_aot.runtime_runner.load import load_artifact
    from eagle_aot.runtime_runner.runner import Runner
    from eagle_aot.runtime_runner.sampling.parameters import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "AsyncRunner", "Conversation", "EagleError", "ExportSpec", "GenerationParams", "Result",
    "Runner", "SamplingParams", "export", "load_artifact",
]  # fmt: skip

_MODULES = {
    "AsyncRunner": "runtime_runner.async_runner",
    "Conversation": "runtime_runner.frontend.conversation",
    "EagleError": "common.errors",
    "ExportSpec": "export.spec",
    "GenerationParams": "runtime_runner.frontend.parameters",
    "Result": "runtime_runner.frontend.generation",
    "Runner": "runtime_runner.runner",
    "SamplingParams": "runtime_runner.sampling.parameters",
    "load_artifact": "runtime_runner.load",
}


def __getattr__(name: str) -> Any:
    if name == "export":
        return import_module("eagle_aot.export")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
