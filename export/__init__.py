"""How checkpoints become one artifact.

Names are resolved on first use, so that `eagle-export --help` need not import torch. The package
itself may be called: `eagle_aot.export(target_model="gemma4-tiny")` is `export_artifact`.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
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
    "ExportSpec", "LoadedPair", "Pair", "export_artifact", "export_pair", "load_draft", "load_pair",
    "resolve", "resolve_checkpoints", "run_check", "run_export", "run_self_test",
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


def export_artifact(
    spec: "ExportSpec | None" = None,
    *,
    on_stage: Callable[[str], None] | None = None,
    **options: Any,
) -> Path:
    """Export a target with its draft head as `eagle-export` does, and return the artifact's
    directory. `options` are the fields of an `ExportSpec`, unless there is a `spec`.

    `on_stage` is called with the name of each stage as it begins ("load", "trace", ...), and
    nothing is printed; by default stages are printed on stderr. The manifest has their times.
    Raises EagleError; SettingError for an option that is not about writing an artifact.
    """
    from eagle_aot.common.command import silenced_libraries
    from eagle_aot.common.errors import SettingError
    from eagle_aot.export.spec import ExportSpec

    if spec is None:
        spec = ExportSpec(**options)
    elif options:
        raise SettingError(f"{min(options)}: goes into the spec, or leave the spec out")
    if spec.target_model is None:
        raise SettingError("target_model: name the target: eagle-inspect targets lists some")
    for name in ("check_only", "reproduce", "as_json"):
        if getattr(spec, name):
            raise SettingError(f"{name}: writes no artifact: use eagle-export, or run_check")
    with silenced_libraries():
        from eagle_aot.common.progress import Progress
        from eagle_aot.export import pipeline
        from eagle_aot.export.publish.push import check_push, push
        from eagle_aot.export.resolution import resolve

        repository = None if spec.push_to is None else check_push(spec.push_to)
        resolved = resolve(spec, Progress(on_stage))
        pipeline.export(resolved)
        if repository is not None:
            push(resolved.output_dir, repository)
    return resolved.output_dir


class CallableModule(ModuleType):
    """A module that is also a function: importing a part of the package would replace a function
    of its name."""

    def __call__(self, spec: "ExportSpec | None" = None, **options: Any) -> Path:
        return export_artifact(spec, **options)


import_module(__name__).__class__ = CallableModule
