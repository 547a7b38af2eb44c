"""Distributions: the wheel that is built from the sdist is the package, and works without a
checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("export", "lab", "runtime_runner", "src", "targets", "triton_kernels")
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE", *FOLDERS)
COMMANDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
BUILD = "import sys; from setuptools import build_meta; build_meta.{}(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist of a copy of the tree."""
    directory = tmp_path_factory.mktemp("distributions")
    tree = directory / "tree"
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        tree.mkdir(exist_ok=True)
        copy(ROOT / name, tree / name)
    build("build_sdist", tree, directory)
    (sdist,) = directory.glob("eagle_aot-*.tar.gz")
    with tarfile.open(sdist) as files:
        files.extractall(directory, filter="data")
    build("build_wheel", directory / sdist.name.removesuffix(".tar.gz"), directory)
    (path,) = directory.glob("eagle_aot-*.whl")
    return path


def build(kind: str, tree: Path, directory: Path) -> None:
    command = [sys.executable, "-c", BUILD.format(kind), str(directory)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment outside the tree with the wheel; its requirements are those of this
    one, whose own eagle_aot is not in it."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib"))
    return directory


def test_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """Also those that are not Python: checkpoints, templates of prompts, the chat page."""
    expected = {
        ("eagle_aot" / path.relative_to(ROOT)).as_posix().replace("eagle_aot/src/", "")
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "egg-info" not in str(path)
    }
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if name.startswith("eagle_aot/")}
    records = {f"eagle_aot/targets/{pair}/training.json" for pair in ("tiny", "smollm2")}
    assert names == expected - records


@pytest.mark.parametrize("arguments", [
    ["eagle-export", "--target-model", "gemma4-tiny", "--check-only", "--backend", "xnnpack",
     "--load-format", "dummy", "--dummy-layers", "1", "--drafter", "ngram"],
    ["eagle-train", "prompts", "--smoke", "--target-model", "gemma4-tiny", "--output-dir", "run"],
])  # fmt: skip
def test_commands_of_the_wheel_work_without_a_checkout(
    arguments: list[str], environment: Path, tmp_path: Path
) -> None:
    command = [str(environment / "bin" / arguments[0]), *arguments[1:]]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_wheel_installs_every_command(environment: Path) -> None:
    assert {path.name for path in (environment / "bin").glob("eagle-*")} == {*COMMANDS}


@pytest.mark.parametrize("folder", ["targets/tiny", "targets/smollm2"])
def test_shipped_checkpoints_are_small(folder: str) -> None:
    files = [p for p in (ROOT / folder).rglob("*") if p.is_file()]
    assert 0 < sum(p.stat().st_size for p in files) <= 12e6


def test_tree_has_no_links() -> None:
    """A checkout on Windows may not be able to make them."""
    folders = [ROOT / name for name in (*FOLDERS, "benchmarks", "docs", "scripts", "tests")]
    assert not [path for folder in folders for path in folder.rglob("*") if path.is_symlink()]
