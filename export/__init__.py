"""How checkpoints become one artifact.

Names are resolved on first use, so that `eagle-export --help` need not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle_aot.export.drafters.registry import load_draft
    from eagle_aot.export.loading.checkpoints import resolve_checkpoints
    from eagle_aot.export.loading.load import LoadedPair, load_pair
    from eagle_aot.export.pair import Pair
    from eagle_aot.export.pipeline import export_pair, run_check, run_export, run_self_test
    from eagle_aot.export.resolution import resolve
    from eagle_aot.export.spec import ExportSpec

__all__ = [
    "ExportSpec", "LoadedPair", "Pair", "export_pair", "load_draft", "load_pair", "resolve",
    "resolve_checkpoints", "run_check", "run_export", "run_self_test",
]  # fmt: skip

_HOME = {
    "ExportSpec": "spec",
    "LoadedPair": "loading.load",
    "Pair": "pair",
    "load_draft": "drafters.registry",
    "load_pair": "loading.load",
    "resolve": "resolution",
    "resolve_checkpoints": "loading.checkpoints",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'pipeline')}"), name)
