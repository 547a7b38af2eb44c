"""`eagle-check --verify`, and that no file of a changed artifact is loaded."""

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from eagle_aot.artifact import PROGRAM, WEIGHTS, Device, Manifest, TargetIdentity, file_record
from eagle_aot.artifact.manifest import PACKAGES, installed_versions
from eagle_aot.artifact.outline import plain
from eagle_aot.common.errors import ArtifactError
from eagle_aot.lab.checks.cli import main
from eagle_aot.lab.checks.integrity import check_integrity
from eagle_aot.runtime_runner import load, load_artifact
from support.files.artifact import write_artifact
from support.refusals import refuses

H100 = Device(name="a GPU", compute_capability="9.0", multiprocessors=132, cuda="13.0")


def verify(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments), "--verify"])


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """Two files that verify; its weights lie beside the program."""
    manifest = write_artifact(tmp_path, versions=installed_versions())
    (tmp_path / WEIGHTS).write_bytes(bytes(1000))
    manifest.files[WEIGHTS] = file_record(tmp_path / WEIGHTS)
    manifest.write(tmp_path)
    return tmp_path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [PROGRAM, WEIGHTS])
def test_changed_artifact_is_not_loaded(
    artifact: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    for owner, function in ((load, "open_program"), (ctypes, "CDLL"), (torch.ops, "load_library")):
        monkeypatch.setattr(owner, function, lambda *what, **how: loaded.append(what))
    flip(artifact / name)
    with pytest.raises(ArtifactError, match=f"{name}: does not match its hash"):
        load_artifact(artifact)
    assert loaded == []


def test_every_file_and_version_is_shown(artifact: Path) -> None:
    result = verify(artifact)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines()}
    assert lines[PROGRAM] == ["7", "ok"] and lines[WEIGHTS] == ["1000", "ok"]
    assert all(lines[name][-1] == "same" for name in ("python", *PACKAGES))


def test_every_problem_is_shown_and_the_first_is_the_error(artifact: Path) -> None:
    flip(artifact / WEIGHTS)
    (artifact / PROGRAM).write_bytes(b"longer than it was")
    (artifact / "tokenizer.json").touch()
    result = verify(artifact)
    assert result.exit_code == 1
    assert "model.ptd 1000 does not match its hash" in " ".join(result.stdout.split())
    assert "has 18 bytes, manifest.json says 7" in result.stdout
    assert "not listed in manifest.json" in result.stdout
    assert result.stdout.splitlines()[-1].split() == ["self_test", "-"]
    assert result.stderr.count("\n") == 1 and "(and 2 more): export again" in result.stderr


def test_json_is_one_object_for_intact_and_changed_artifacts(artifact: Path) -> None:
    right = json.loads(verify(artifact, "--json").stdout)
    assert right["intact"] and right["runs_here"] and right["problems"] == []
    assert right["manifest"] == json.loads((artifact / "manifest.json").read_text())
    flip(artifact / PROGRAM)
    result = verify(artifact, "--json")
    wrong = json.loads(result.stdout)
    assert result.exit_code == 1 and not wrong["intact"]
    assert wrong["status"] == {PROGRAM: "does not match its hash in manifest.json", WEIGHTS: "ok"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_an_artifact_for_another_machine_is_intact_and_does_not_run_here(tmp_path: Path) -> None:
    versions = {"torch": "1.0.0", "triton": "1.0.0"}
    write_artifact(tmp_path, backend="cuda", device=H100, versions=versions)
    result = verify(tmp_path)
    assert result.exit_code == 1
    assert "needs an NVIDIA GPU, and this machine shows none" in result.stderr
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert lines["torch"].endswith("differs: must be of one minor version")
    assert lines["triton"].endswith("differs")
    integrity = check_integrity(tmp_path).to_json()
    assert (integrity["intact"], integrity["runs_here"]) == (True, False)


@pytest.mark.parametrize(("capability", "version", "message"), [
    ((9, 0), torch.__version__, None),
    ((10, 0), torch.__version__, "compiled for compute capability 9.0, this GPU has 10.0"),
    ((9, 0), "1.0.0", "compiled with torch 1.0"),
])  # fmt: skip
def test_a_gpus_generation_and_torchs_minor_version_decide(
    tmp_path: Path, capability: tuple[int, int], version: str, message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    write_artifact(tmp_path, backend="cuda", device=H100, versions={"torch": version})
    integrity = check_integrity(tmp_path)
    assert integrity.problems == {}
    assert integrity.misfit is None if message is None else message in str(integrity.misfit)


def test_a_backend_of_another_version_does_not_run_here(tmp_path: Path) -> None:
    write_artifact(tmp_path, backend="tpu")
    refusal = verify(tmp_path)
    assert refusal.exit_code == 1 and "backend 'tpu': this version runs" in refusal.stderr


def test_files_are_checked_where_no_check_is_named(artifact: Path) -> None:
    unnamed = CliRunner().invoke(main, [str(artifact)])
    assert (unnamed.exit_code, unnamed.output) == (0, verify(artifact).output)


@pytest.mark.parametrize("option", ["--tree", "--drafter", "--seeds"])
def test_option_that_verify_does_not_use_is_refused(artifact: Path, option: str) -> None:
    result = verify(artifact, option, "4")
    assert result.exit_code == 2 and f"--verify: leave out {option}\n" in result.stderr


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    refuses(verify(tmp_path / "none"), "none: no such artifact directory")


def test_a_manifest_cannot_write_to_a_terminal(tmp_path: Path) -> None:
    hostile = "\x1b[2J\r\x07"
    write_artifact(
        tmp_path,
        eagle_aot_version=hostile,
        versions={hostile: hostile},
        drafter=hostile,
        target=TargetIdentity(name=hostile, directory=hostile, files={}),
        options={hostile: {"a": [hostile, {hostile: hostile}]}},
        decisions={"taps": {"value": hostile, "source": [hostile]}},
    )
    result = verify(tmp_path)
    assert result.exit_code == 0
    assert all(c.isprintable() or c == "\n" for c in result.output)


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"),
    (True, "on"),
    ([1, 2], "1,2"),
    ({"value": [1, 2], "source": "a key"}, "1,2 (a key)"),
    ({"value": 1, "source": "a key", "more": 2}, "value 1, source a key, more 2"),
    ([{"a": 1}, {"a": 2, "b": None}], "a 1; a 2, b -"),
    ({}, "-"),
])  # fmt: skip
def test_values_are_shown_without_brackets(value: Any, text: str) -> None:
    assert plain(value) == text


def test_manifest_of_an_older_schema_is_refused_as_such(artifact: Path) -> None:
    stored = json.loads((artifact / "manifest.json").read_text())
    (artifact / "manifest.json").write_text(json.dumps(stored | {"schema_version": 2}))
    refuses(verify(artifact), "schema version 2, this runner reads 4: export again")
    with pytest.raises(ArtifactError, match="schema version 2"):
        Manifest.read(artifact)
