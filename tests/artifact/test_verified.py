"""Who verifies an artifact, and when it is verified again."""

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagle_aot.artifact import MANIFEST, PROGRAM, Manifest
from eagle_aot.artifact.verified import Snapshot, forget, verify_once
from eagle_aot.common.errors import ArtifactError
from support.files.artifact import write_artifact

KEY = "0123"


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The directories whose files were hashed; what was found is noted in one of the test's own."""
    found: list[Path] = []
    verify = Manifest.verify

    def counted(manifest: Manifest, directory: Path) -> None:
        verify(manifest, directory)
        found.append(directory)

    monkeypatch.setattr(Manifest, "verify", counted)
    (tmp_path / "noted").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "noted"))
    return found


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    (tmp_path / "artifact").mkdir()
    write_artifact(tmp_path / "artifact")
    return tmp_path / "artifact"


def test_the_first_of_many_verifies_for_all(
    artifact: Path, verified: list[Path], tmp_path: Path
) -> None:
    manifest = Manifest.read(artifact)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: verify_once(manifest, artifact, KEY), range(16)))
    assert verified == [artifact]
    verify_once(manifest, artifact, "another")
    assert len(verified) == 2
    for key in (KEY, "another", "a third"):
        forget(key)
    assert not list((tmp_path / "noted").iterdir())


def rewrite(artifact: Path) -> None:
    """With other content of the same length, and the time of its last change as before."""
    path = artifact / PROGRAM
    before = path.stat()
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_manifest(artifact: Path) -> None:
    path = artifact / MANIFEST
    path.write_text(
        path.read_text().replace(Manifest.read(artifact).files[PROGRAM].sha256, 64 * "0")
    )


def add_unlisted(artifact: Path) -> None:
    (artifact / "tokenizer.model").write_text("{}")


@pytest.mark.parametrize(("change", "line"), [
    (rewrite, "does not match its hash"),
    (replace_manifest, "does not match its hash"),
    (add_unlisted, "not listed"),
    (lambda artifact: (artifact / PROGRAM).unlink(), "missing"),
])  # fmt: skip
def test_changed_files_are_verified_again(
    artifact: Path, verified: list[Path], change: Callable[[Path], None], line: str
) -> None:
    verify_once(Manifest.read(artifact), artifact, KEY)
    change(artifact)
    for _ in range(2):
        with pytest.raises(ArtifactError, match=line):
            verify_once(Manifest.read(artifact), artifact, KEY)


def test_incomplete_or_linked_stamp_files_are_ignored(
    artifact: Path, verified: list[Path], tmp_path: Path
) -> None:
    manifest, note = Manifest.read(artifact), tmp_path / "noted" / f"eagle-aot-{KEY}"
    verify_once(manifest, artifact, KEY)
    assert note.stat().st_mode & 0o777 == 0o600
    note.write_text(note.read_text()[:-9])
    verify_once(manifest, artifact, KEY)
    note.unlink()
    note.symlink_to(tmp_path / "elsewhere")
    verify_once(manifest, artifact, KEY)
    assert len(verified) == 3 and not (tmp_path / "elsewhere").exists()


def swap(artifact: Path) -> None:
    """Put another file in the place of the program."""
    (artifact / "other").write_bytes((artifact / PROGRAM).read_bytes())
    (artifact / "other").replace(artifact / PROGRAM)


def swap_and_restore(artifact: Path) -> None:
    """Put the file itself back, after another one was read in its place."""
    (artifact / PROGRAM).rename(artifact / "kept")
    (artifact / PROGRAM).write_bytes(b"another")
    (artifact / "kept").replace(artifact / PROGRAM)


def swap_directory(artifact: Path) -> None:
    artifact.rename(artifact.with_name("old"))
    artifact.mkdir()
    write_artifact(artifact)


@pytest.mark.parametrize(
    "change", [rewrite, replace_manifest, swap, swap_and_restore, swap_directory]
)
def test_files_that_change_after_they_were_verified_are_noticed(
    artifact: Path, change: Callable[[Path], None]
) -> None:
    manifest = Manifest.read(artifact)
    snapshot = Snapshot(manifest, artifact)
    manifest.verify(artifact)
    (artifact / "notes.txt").write_text("no file of the artifact")
    snapshot.check()
    change(artifact)
    with pytest.raises(ArtifactError, match="artifact: changed while it was read: open it again"):
        snapshot.check()
