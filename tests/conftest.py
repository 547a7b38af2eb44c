"""Real artifacts, exported once per test run beside the faster tests."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from eagle_aot.runtime_runner import Runner, load_artifact

if TYPE_CHECKING:
    from support.server import Server

torch.set_num_threads(1)
RANDOM_MAX_SEQ_LEN = 192
CUDA_ARTIFACT = "CUDA_ARTIFACT"


ARTIFACT = "_artifact"
"""How the names of fixtures that are exports end."""


RUNNERS = ["tiny", "int4_head", "random_runner", "qwen3_runner", "batch_runner", "int4_runner",
           "assistant_runner", "dflash_runner"]  # fmt: skip


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests of artifacts, so that they can run in a process beside all others."""
    if needs_artifact(item):
        item.add_marker(pytest.mark.artifact)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where they do not, they come last: the exports take minutes, on the second core."""
    items.sort(key=needs_artifact)


def needs_artifact(item: pytest.Item) -> bool:
    """Whether any of a test's fixtures is an export, or a parameter the name of a runner."""
    if any(name.endswith(ARTIFACT) for name in fixtures(item)):
        return True
    callspec = getattr(item, "callspec", None)
    return callspec is not None and any(value in RUNNERS for value in callspec.params.values())


def fixtures(item: pytest.Item) -> Sequence[str]:
    """The names of all fixtures that a test needs."""
    return getattr(item, "fixturenames", ())


class Export:
    """One `eagle-export` in a process of its own."""

    def __init__(self, output_dir: Path, *arguments: str) -> None:
        self.output_dir = output_dir
        beside = Path(sys.executable).with_name("eagle-export")
        program = beside if beside.exists() else "eagle-export"
        command = [program, "--output-dir", output_dir]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait(self) -> Path:
        """The artifact's directory, once it is there."""
        output, errors = self.process.communicate()
        assert self.process.returncode == 0, errors
        assert output.startswith(str(self.output_dir))
        return self.output_dir


@pytest.fixture(scope="session")
def random_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from support.random_pair import write_random_pair  # slow, and not needed in child processes

    return write_random_pair(tmp_path_factory.mktemp("random_pair"))


@pytest.fixture(scope="session")
def qwen3_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from support.random_pair import write_random_pair  # slow

    return write_random_pair(tmp_path_factory.mktemp("qwen3_pair"), family="qwen3")


@pytest.fixture(scope="session")
def assistant_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from support.heads.assistants import write_assistant_pair  # slow

    return write_assistant_pair(tmp_path_factory.mktemp("assistant_pair"))


@pytest.fixture(scope="session")
def picture_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from support.picture_pair import write_picture_pair  # slow

    return write_picture_pair(tmp_path_factory.mktemp("picture_pair"))


@pytest.fixture(scope="session")
def dflash_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from support.heads.dflash import write_dflash_pair  # slow

    return write_dflash_pair(tmp_path_factory.mktemp("dflash_pair"))


LENGTH = "--max-seq-len", str(RANDOM_MAX_SEQ_LEN)
QUICK = *LENGTH, "--no-self-test"
OF_PAIRS = {
    "random": ("random_pair", "gemma4-31b", *QUICK),
    "batch": (
        "random_pair",
        "gemma4-31b",
        *QUICK,
        "--max-batch-size",
        "4",
        "--table-quant",
        "int8",
    ),
    "qwen3": ("qwen3_pair", "auto", *LENGTH, "--cpu-weights", "int8"),
    "assistant": ("assistant_pair", "auto", *QUICK, "--max-batch-size", "2"),
    "picture": (
        *("picture_pair", "auto", "--max-seq-len", "320", "--no-self-test"),
        *("--inputs", "text,image", "--image-seed", "picture", "--max-batch-size", "2"),
    ),
    "dflash": ("dflash_pair", "auto", *QUICK, "--max-batch-size", "2"),
    "int4": ("random_pair", "gemma4-31b", *QUICK, "--cpu-weights", "int4"),
}
"""Exports of pairs that tests write: the fixture of the pair, `--target-model`, and options."""


@pytest.fixture(scope="session", autouse=True)
def exports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Export]]:
    """The exports that the selected tests need, started at once."""
    needed = {name for item in request.session.items for name in fixtures(item)}
    started: dict[str, Export] = {}
    directory = tmp_path_factory.mktemp("artifacts")
    if "tiny_artifact" in needed:
        arguments = ("--target-model", "gemma4-tiny", "--backend", "xnnpack")
        started["tiny"] = Export(directory / "tiny", *arguments)
    if "int4_head_artifact" in needed:
        arguments = ("--target-model", "gemma4-tiny", "--backend", "xnnpack", "--no-self-test")
        more = "--draft-quant", "int4", "--max-batch-size", "4"
        started["int4_head"] = Export(directory / "int4_head", *arguments, *more)
    if "cuda_artifact" in needed and torch.cuda.is_available() and CUDA_ARTIFACT not in os.environ:
        arguments = ("--target-model", "gemma4-tiny", "--backend", "cuda", "--max-seq-len", "4608")
        started["cuda"] = Export(directory / "cuda", *arguments)
    for name, (pair, target, *options) in OF_PAIRS.items():
        if name + ARTIFACT in needed:
            target_dir, head_dir = request.getfixturevalue(pair)
            started[name] = Export(
                directory / name,
                *("--target-model", target, "--backend", "xnnpack", *options),
                *("--target-dir", str(target_dir), "--draft-dir", str(head_dir)),
            )
    yield started
    for export in started.values():
        export.process.kill()


@pytest.fixture(scope="session")
def one_thread() -> None:
    """For ExecuTorch too: its threads wait for one another in loops, and others need the cores."""
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool  # slow

    _unsafe_reset_threadpool(1)


@pytest.fixture(scope="session")
def tiny_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """The shipped pair: trained target, trained head."""
    return exports["tiny"].wait()


@pytest.fixture(scope="session")
def int4_head_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """The shipped pair, its head in INT4, with caches for four sequences."""
    return exports["int4_head"].wait()


@pytest.fixture(scope="session")
def random_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """A random target with a random head and a sliding window of 16."""
    return exports["random"].wait()


@pytest.fixture(scope="session")
def qwen3_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """A random target of another family, found by its config, with a random head, in INT8."""
    return exports["qwen3"].wait()


@pytest.fixture(scope="session")
def batch_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """The random pair with caches for four sequences."""
    return exports["batch"].wait()


@pytest.fixture(scope="session")
def int4_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """The random pair, its linears in INT4."""
    return exports["int4"].wait()


@pytest.fixture(scope="session")
def assistant_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """Two layers of a Gemma 4 and their assistant, with caches for two sequences."""
    return exports["assistant"].wait()


@pytest.fixture(scope="session")
def picture_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """A random Gemma 4 that reads pictures, with caches for two sequences."""
    return exports["picture"].wait()


@pytest.fixture(scope="session")
def dflash_artifact(exports: dict[str, Export], one_thread: None) -> Path:
    """Six layers of a Qwen3 and a DFlash head, with caches for two sequences."""
    return exports["dflash"].wait()


@pytest.fixture(scope="session")
def cuda_artifact(exports: dict[str, Export]) -> Path:
    """The shipped pair for the GPU of this machine, with a context of 4608 tokens.

    Exported, unless the environment names one that was exported before.
    """
    if CUDA_ARTIFACT in os.environ:
        return Path(os.environ[CUDA_ARTIFACT])
    if "cuda" not in exports:
        pytest.skip("needs an NVIDIA GPU")
    return exports["cuda"].wait()


@pytest.fixture(scope="session")
def tiny(tiny_artifact: Path) -> Runner:
    return load_artifact(tiny_artifact)


@pytest.fixture(scope="session")
def int4_head(int4_head_artifact: Path) -> Runner:
    return load_artifact(int4_head_artifact)


@pytest.fixture(scope="session")
def random_runner(random_artifact: Path) -> Runner:
    return load_artifact(random_artifact)


@pytest.fixture(scope="session")
def qwen3_runner(qwen3_artifact: Path) -> Runner:
    return load_artifact(qwen3_artifact)


@pytest.fixture(scope="session")
def int4_runner(int4_artifact: Path) -> Runner:
    return load_artifact(int4_artifact)


@pytest.fixture(scope="session")
def assistant_runner(assistant_artifact: Path) -> Runner:
    return load_artifact(assistant_artifact)


@pytest.fixture(scope="session")
def picture_runner(picture_artifact: Path) -> Runner:
    return load_artifact(picture_artifact)


@pytest.fixture(scope="session")
def dflash_runner(dflash_artifact: Path) -> Runner:
    return load_artifact(dflash_artifact)


@pytest.fixture(scope="session")
def batch_runner(batch_artifact: Path) -> Runner:
    return load_artifact(batch_artifact)


@pytest.fixture(scope="session")
def server(int4_head_artifact: Path) -> "Iterator[Server]":
    """`eagle-serve` of a model that is called tiny, for tests that leave it as it was."""
    from support.server import served  # slow, and not needed in child processes

    with served(int4_head_artifact, "--model", "tiny", "--max-waiting", "30") as found:
        yield found
