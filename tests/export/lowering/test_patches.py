"""The table of patches: every entry applies, is undone afterwards, and can be left out."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch.torch_version import TorchVersion

from eagle_aot.common.progress import Progress
from eagle_aot.export import pipeline
from eagle_aot.export.lowering import backend
from eagle_aot.export.lowering.patches import (
    COMPILE_METHOD,
    CUDA,
    TIME_KERNEL,
    XNNPACK,
    Patch,
    applied,
    missing,
)

TABLE = [*XNNPACK, *(CUDA if find_spec("triton") else ())]
EXPORT = Path(pipeline.__file__).parent


def in_every_version(entry: Patch) -> Patch:
    """The entry as if it were meant for all versions: one for old ones still names its target."""
    return Patch(
        **{name: getattr(entry, name) for name in ("target", "replacement", "why", "saves")},
        torch=("0", "99"),
        executorch=("0", "99"),
    )


def current(entry: Patch) -> Any:
    attribute = entry.locate()
    assert attribute is not None
    return getattr(*attribute)


def noted(old: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for entries that name none."""
    return lambda *arguments: (old, arguments)


def ids(entry: Patch) -> str:
    return entry.target.rpartition(":")[2]


@pytest.mark.parametrize("entry", [*map(in_every_version, TABLE)], ids=ids)
def test_entry_replaces_its_target_and_is_undone(entry: Patch) -> None:
    before = current(entry)
    with pytest.raises(KeyError), applied([entry], {entry: noted}):
        assert current(entry) != before
        raise KeyError("a failure while lowering")
    assert current(entry) == before  # not the same object, if it is a class method


@pytest.mark.parametrize("entry", [each for each in TABLE if each.replacement], ids=ids)
def test_replacement_takes_arguments_by_position_and_name(entry: Patch) -> None:
    """`bind` raises TypeError for what it does not take."""
    parameters = signature(current(entry)).parameters.values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    with applied([entry]):
        signature(current(entry)).bind(*names)
        signature(current(entry)).bind(**dict.fromkeys(names))


@pytest.mark.parametrize("entry", [*map(in_every_version, TABLE)], ids=ids)
def test_missing_target_leaves_the_entry_out_in_one_line(
    entry: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing([entry]) == []
    module, _, names = entry.target.partition(":")
    for name in names.split("|"):
        monkeypatch.delattr(f"{module}.{name.partition('.')[0]}", raising=False)
    before = dict(vars(import_module(module)))
    with applied([entry], {entry: noted}):
        assert vars(import_module(module)) == before
    (line,) = missing([entry])
    assert line.startswith(
        f"patch left out: {entry.target} or what replaces it is missing in torch"
    )
    assert version("torch") in line and version("executorch") in line
    assert line.endswith(f"it saves {entry.saves}") and "\n" not in line


@pytest.mark.parametrize("entry", TABLE, ids=ids)
def test_entry_says_why_it_is_there(entry: Patch) -> None:
    assert entry.why.endswith(".") and entry.saves and entry.upstream
    assert entry.upstream == "none known" or entry.upstream.startswith("pytorch/")


def test_the_table_has_fourteen_entries() -> None:
    assert len(XNNPACK) + len(CUDA) == 14


def test_missing_module_leaves_the_entry_out() -> None:
    entry = Patch(target="torch.no_such_module:name", replacement=None, why="", saves="")
    with applied([entry], {entry: noted}):
        assert entry.locate() is None


def test_replacement_that_needs_more_of_a_library_leaves_the_entry_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (entry,) = [entry for entry in XNNPACK if "PassManager" in entry.target]
    monkeypatch.setitem(sys.modules, "eagle_aot.export.lowering.xnnpack_replacements", None)
    before = current(entry)
    with applied([entry]):
        assert current(entry) is before
    assert len(missing([entry])) == 1


def test_entry_for_other_versions_is_left_out_without_a_line() -> None:
    entry = Patch(target="json:dumps", replacement=None, why="", saves="", torch=("0", "1"))
    before = current(entry)
    with applied([entry], {entry: noted}):
        assert current(entry) is before
    gone = Patch(target="json:gone", replacement=None, why="", saves="", executorch=("0", "1"))
    assert missing([gone]) == []


def test_entry_without_a_replacement_needs_one_given() -> None:
    for entry in (COMPILE_METHOD, TIME_KERNEL):
        assert entry.replacement is None
    entry = Patch(target="json:dumps", replacement=None, why="", saves="")
    before = current(entry)
    with applied([entry]):
        assert current(entry) is before


def test_renamed_target_is_found_by_either_name() -> None:
    entry = Patch(target="json:old_dumps|dumps", replacement=None, why="", saves="")
    assert current(entry) is current(Patch(target="json:dumps", replacement=None, why="", saves=""))


def test_object_per_kernel_is_for_torch_before_2_13() -> None:
    (entry,) = [entry for entry in CUDA if entry.target.endswith(":convert_cubin_to_obj")]
    assert entry.is_meant_for_installed == (TorchVersion(version("torch")) < "2.13")


def test_export_prints_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiler:
        PATCHES = (Patch(target="json:gone", replacement=None, why="", saves="a minute"),)

        def workspace(self, directory: Path) -> Any:
            raise InterruptedError("nothing is lowered")

    progress, printed = Progress(), StringIO()
    progress.console = Console(file=printed, width=40)
    with pytest.raises(InterruptedError):
        pipeline.write_program(Compiler(), {}, None, Path(), progress)  # type: ignore[arg-type]
    (line,) = printed.getvalue().splitlines()
    assert line.startswith(
        "patch left out: json:gone or what replaces it is missing"
    ) and line.endswith("a minute")


def test_no_other_file_patches_a_library() -> None:
    words = ("patch.object", "unittest.mock", "monkeypatch")
    patching = [
        path.name
        for path in EXPORT.rglob("*.py")
        if any(word in path.read_text() for word in words)
    ]
    assert patching == [Path(backend.__file__).with_name("patches.py").name]
