"""An artifact's directory appears whole or not at all."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle_aot.artifact import ARTIFACT_FILES
from eagle_aot.common.errors import ExportError
from eagle_aot.common.tensors import save_tensors
from eagle_aot.export.publish.output_dir import atomic_output_dir, check_disk, check_output_dir


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write_artifact(final: Path, content: str) -> None:
    with atomic_output_dir(final) as partial:
        say(partial, content)


def say(directory: Path, content: str) -> None:
    (directory / "manifest.json").write_text(json.dumps({"files": {}, "says": content}))


def said(final: Path) -> str:
    return str(json.loads((final / "manifest.json").read_text())["says"])


def test_the_directory_appears_when_the_block_ends_well(tmp_path: Path) -> None:
    final = tmp_path / "new" / "artifact"
    with atomic_output_dir(final) as partial:
        assert not final.exists() and partial.is_dir() and partial.parent == final.parent
        (partial / "manifest.json").write_text("{}")
    assert names(tmp_path / "new") == ["artifact"] and names(final) == ["manifest.json"]


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt(), SystemExit(1)])
def test_a_failure_inside_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), atomic_output_dir(tmp_path / "artifact") as partial:
        (partial / "model.pte").write_bytes(b"half")
        raise error
    assert names(tmp_path) == []


def test_a_failure_inside_keeps_the_artifact_that_was_there(tmp_path: Path) -> None:
    final = tmp_path / "artifact"
    write_artifact(final, "old")
    with pytest.raises(KeyError), atomic_output_dir(final) as partial:
        (partial / "manifest.json").write_text("new")
        raise KeyError
    assert names(tmp_path) == ["artifact"]
    assert said(final) == "old"


def test_an_artifact_is_replaced_whole(tmp_path: Path) -> None:
    final = tmp_path / "artifact"
    write_artifact(final, "old")
    check_output_dir(final)
    (final / "left_over").write_text("")
    write_artifact(final, "new")
    assert names(tmp_path) == ["artifact"] and names(final) == ["manifest.json"]
    assert said(final) == "new"


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
        ExportError, match=r"thesis: holds other files \(chapter.tex\): choose another --output-dir"
    ):
        check_output_dir(tmp_path / "thesis")
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="exists and is not a directory"):
        check_output_dir(tmp_path / "file")


@pytest.mark.parametrize("manifest", [
    "{", '{"manifest_version": 3}', '{"files": {"model.pte": {}}}',
    '{"files": {"thesis.tex": {}}}',
])  # fmt: skip
def test_a_manifest_does_not_make_a_directory_ours(manifest: str, tmp_path: Path) -> None:
    """Extensions of browsers have one too, and a replaced directory is gone with all it holds."""
    (tmp_path / "manifest.json").write_text(manifest)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ExportError, match=r"holds other files"):
        check_output_dir(tmp_path)


def test_an_artifact_may_be_replaced(tmp_path: Path) -> None:
    for name in ARTIFACT_FILES:
        (tmp_path / name).write_text("")
    files: dict[str, object] = {name: {} for name in ARTIFACT_FILES}
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
    check_output_dir(tmp_path)


def test_an_unwritable_parent_is_refused_before_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not bind root, so the system's answer is given here."""

    def refuse(**arguments: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(ExportError, match="artifact: cannot be written: Permission denied: choose"):
        check_output_dir(tmp_path / "deep" / "artifact")


def test_places_that_cannot_take_a_rename_are_refused_before_the_export(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="Not a directory"):
        check_output_dir(tmp_path / "file" / "artifact")
    with pytest.raises(ExportError, match="File name too long"):
        check_output_dir(tmp_path / ("x" * 300))
    with pytest.raises(ExportError, match="a mount point cannot be replaced"):
        check_output_dir(Path("/proc"))
    assert names(tmp_path) == ["file"]


def test_a_link_keeps_pointing_at_the_artifact(tmp_path: Path) -> None:
    write_artifact(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    check_output_dir(tmp_path / "link")
    write_artifact(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and names(tmp_path) == ["link", "real"]
    assert said(tmp_path / "real") == "new"


@pytest.mark.parametrize("error", [OSError(16, "Device or resource busy"), KeyboardInterrupt()])
def test_a_failed_replacement_puts_the_old_artifact_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    final = tmp_path / "artifact"
    write_artifact(final, "old")
    rename = Path.rename

    def refuse_partial(self: Path, target: Path) -> Path:
        if ".partial-" in self.name:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_partial)
    with pytest.raises((ExportError, KeyboardInterrupt), match=r"resource busy|^$"):
        write_artifact(final, "new")
    assert names(tmp_path) == ["artifact"]
    assert said(final) == "old"


@pytest.mark.parametrize("already_renamed", [False, True])
def test_a_kill_between_the_renames_costs_nothing(tmp_path: Path, already_renamed: bool) -> None:
    final = tmp_path / "artifact"
    write_artifact(final, "old")
    final.rename(tmp_path / ".artifact.replaced")
    if already_renamed:
        final.mkdir()
        say(final, "newer")
    with pytest.raises(KeyError), atomic_output_dir(final):
        raise KeyError
    assert names(tmp_path) == ["artifact"]
    assert said(final) == ("newer" if already_renamed else "old")


def test_a_disk_that_refuses_is_a_stated_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ExportError, match="cannot be written"),
        atomic_output_dir(tmp_path / "file" / "a"),
    ):
        pytest.fail("entered")
    with (
        pytest.raises(ExportError, match="cannot be written: No space left"),
        atomic_output_dir(tmp_path / "artifact"),
    ):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == ["file"]


def test_partial_output_of_a_killed_export_is_removed_and_a_running_ones_is_kept(
    tmp_path: Path,
) -> None:
    """Of any artifact in the same directory; what was not made by an export is kept."""
    for name in (".artifact.partial-abandone", ".another.partial-x", ".another.partial-abcd_123"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pte").write_bytes(b"half")
    for name in (".artifact.partial-holidays", ".photos.partial-holidays"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sea.jpg").write_bytes(b"")
    (tmp_path / ".photos.partial-birthday").write_bytes(b"")
    kept = [".another.partial-x", ".artifact.partial-holidays", ".photos.partial-birthday",
            ".photos.partial-holidays"]  # fmt: skip
    with atomic_output_dir(tmp_path / "artifact") as running:
        write_artifact(tmp_path / "artifact", "first")
        assert names(tmp_path) == sorted([*kept, "artifact", running.name])
        say(running, "second")
    assert names(tmp_path) == [*kept, "artifact"]
    assert said(tmp_path / "artifact") == "second"


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_named_as_a_replaced_artifact_is_kept(tmp_path: Path, exists: bool) -> None:
    if exists:
        write_artifact(tmp_path / "artifact", "first")
    photo = tmp_path / ".artifact.replaced" / "sea.jpg"
    photo.parent.mkdir()
    photo.touch()
    with pytest.raises(ExportError, match=r"\.artifact\.replaced: not an artifact .* move it away"):
        write_artifact(tmp_path / "artifact", "second")
    assert photo.exists() and (tmp_path / "artifact").exists() == exists


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_all_files_have_the_permissions_of_new_ones(tmp_path: Path, mask: int) -> None:
    """Also those that are written through temporary files, or copied with their own."""
    before = os.umask(mask)
    try:
        with atomic_output_dir(tmp_path / "artifact") as partial:
            save_file({"target_ids": torch.zeros(2)}, partial / "draft_ids.safetensors")
            (partial / "tokenizer.json").touch(mode=0o400)
            say(partial, "whole")
        save_tensors({"a": torch.zeros(2)}, tmp_path / "artifact" / "model.safetensors")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "artifact").iterdir()}
    assert modes == {0o666 & ~mask}
    assert (tmp_path / "artifact").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_killed_process_leaves_no_artifact_and_the_next_export_cleans_up(tmp_path: Path) -> None:
    final = tmp_path / "artifact"
    body = (
        "import os, sys, pathlib\n"
        "from eagle_aot.export.publish.output_dir import atomic_output_dir\n"
        "with atomic_output_dir(pathlib.Path(sys.argv[1])) as partial:\n"
        "    (partial / 'manifest.json').write_text('half'); os.kill(os.getpid(), 9)"
    )
    process = subprocess.run([sys.executable, "-c", body, final], capture_output=True)
    assert process.returncode == -9
    assert not final.exists() and len(os.listdir(tmp_path)) == 1
    write_artifact(tmp_path / "another", "whole")
    assert names(tmp_path) == ["another"]


def test_a_disk_without_room_for_the_weights_is_refused(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    check_disk(tmp_path / "not" / "there", free // 2)
    with pytest.raises(ExportError, match=r"weights take .* GiB, and .* free on its disk: choose"):
        check_disk(tmp_path / "not" / "there", 2 * free + 2**30)
