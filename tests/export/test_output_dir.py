"""An artifact's directory appears whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle_aot.errors import ExportError
from eagle_aot.export import output_dir
from eagle_aot.export.output_dir import appearing, check_output_dir


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write_artifact(final: Path, content: str) -> None:
    with appearing(final) as partial:
        (partial / "manifest.json").write_text(content)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_directory_appears_when_the_block_ends_well(tmp_path: Path) -> None:
    final = tmp_path / "new" / "artifact"
    with appearing(final) as partial:
        assert not final.exists() and partial.is_dir() and partial.parent == final.parent
        (partial / "manifest.json").write_text("{}")
    assert names(tmp_path / "new") == ["artifact"] and names(final) == ["manifest.json"]


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt(), SystemExit(1)])
def test_a_failure_inside_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), appearing(tmp_path / "artifact") as partial:
        (partial / "model.pte").write_bytes(b"half")
        raise error
    assert names(tmp_path) == []


def test_a_failure_inside_keeps_the_artifact_that_was_there(tmp_path: Path) -> None:
    final = tmp_path / "artifact"
    write_artifact(final, "old")
    with pytest.raises(KeyError), appearing(final) as partial:
        (partial / "manifest.json").write_text("new")
        raise KeyError
    assert names(tmp_path) == ["artifact"]
    assert (final / "manifest.json").read_text() == "old"


def test_an_artifact_is_replaced_whole(tmp_path: Path) -> None:
    final = tmp_path / "artifact"
    write_artifact(final, "old")
    (final / "left_over").write_text("")
    check_output_dir(final)
    write_artifact(final, "new")
    assert names(tmp_path) == ["artifact"] and names(final) == ["manifest.json"]
    assert (final / "manifest.json").read_text() == "new"


def test_free_and_empty_directories_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new", "deep/new"):
        check_output_dir(tmp_path / name)
    write_artifact(tmp_path / "empty", "{}")
    assert names(tmp_path / "empty") == ["manifest.json"]


def test_a_foreign_directory_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("")
    with pytest.raises(
        ExportError, match=r"thesis: holds other files: choose another --output-dir"
    ):
        check_output_dir(tmp_path / "thesis")
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="exists and is not a directory"):
        check_output_dir(tmp_path / "file")


def test_an_unwritable_parent_is_refused_before_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not bind root, so the question to the system is answered here."""
    monkeypatch.setattr(output_dir.os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(ExportError, match=f"{tmp_path}: not a writable directory: choose another"):
        check_output_dir(tmp_path / "deep" / "artifact")


def test_a_disk_that_refuses_is_a_stated_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"), appearing(tmp_path / "file" / "a"):
        pytest.fail("entered")
    with (
        pytest.raises(ExportError, match="cannot be written: No space left"),
        appearing(tmp_path / "artifact"),
    ):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == ["file"]


def test_what_a_killed_export_left_is_removed_and_a_running_ones_is_kept(tmp_path: Path) -> None:
    left = [f".artifact.partial-{dead_pid()}", ".artifact.partial-1", ".artifact.partial-x"]
    other = ".another.partial-1"
    for name in (*left, other):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pte").write_bytes(b"half")
    write_artifact(tmp_path / "artifact", "{}")
    assert names(tmp_path) == sorted(["artifact", *left[1:], other])


def test_a_killed_process_leaves_no_artifact_and_the_next_export_cleans_up(tmp_path: Path) -> None:
    final = tmp_path / "artifact"
    body = (
        "import os, sys, pathlib; from eagle_aot.export.output_dir import appearing\n"
        "with appearing(pathlib.Path(sys.argv[1])) as partial:\n"
        "    (partial / 'manifest.json').write_text('half'); os.kill(os.getpid(), 9)"
    )
    process = subprocess.run([sys.executable, "-c", body, final], capture_output=True)
    assert process.returncode == -9
    assert not final.exists() and len(os.listdir(tmp_path)) == 1
    write_artifact(final, "whole")
    assert names(tmp_path) == ["artifact"]
