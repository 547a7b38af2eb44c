"""`export` in Python: the same fields as the command, and which of them it refuses."""

from pathlib import Path
from typing import Any

import pytest

import eagle_aot
from eagle_aot import ExportSpec, export
from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.export import pipeline
from eagle_aot.export.resolution import ResolvedExport

TINY: dict[str, Any] = {"target_model": "gemma4-tiny", "backend": "xnnpack"}


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[ResolvedExport]:
    """What is resolved, and not run."""
    exports: list[ResolvedExport] = []
    monkeypatch.setattr(pipeline, "export", exports.append)
    return exports


@pytest.mark.parametrize("as_spec", [True, False])
def test_fields_are_those_of_the_command(resolved: list[ResolvedExport], as_spec: bool) -> None:
    options = {**TINY, "max_batch_size": 2, "output_dir": Path("here")}
    directory = export(ExportSpec(**options)) if as_spec else export(**options)
    (done,) = resolved
    assert directory == done.output_dir == Path("here") and done.spec.max_batch_size == 2


@pytest.mark.parametrize(("options", "line"), [
    ({}, "target_model: name the target"),
    ({**TINY, "check_only": True}, "check_only: writes no artifact"),
    ({**TINY, "as_json": True}, "as_json: writes no artifact"),
    ({"target_model": "gema4-tiny"}, r"unknown target 'gema4-tiny'; did you mean gemma4-tiny\?"),
    ({**TINY, "backend": "xnpack"}, r"must be one of auto, cuda, xnnpack; did you mean xnnpack\?"),
    ({"spec": ExportSpec(**TINY), "jobs": 2}, "jobs: goes into the spec"),
])  # fmt: skip
def test_other_fields_are_refused(
    resolved: list[ResolvedExport], options: dict[str, Any], line: str
) -> None:
    with pytest.raises(SettingError, match=line):
        export(**options)
    assert not resolved


def test_the_function_is_the_package_and_all_names_resolve() -> None:
    assert export is eagle_aot.export and export.pipeline is pipeline  # type: ignore[attr-defined]
    assert all(getattr(eagle_aot, name) is not None for name in eagle_aot.__all__)
    assert eagle_aot.EagleError is EagleError
    with pytest.raises(AttributeError, match="no attribute 'exprot'"):
        eagle_aot.exprot  # noqa: B018
