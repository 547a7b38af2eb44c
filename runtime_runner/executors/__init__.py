"""Ways to run an artifact's methods."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from eagle_aot.errors import UnsupportedError


class Executor(Protocol):
    """Runs the methods of one opened program; the caches live inside it."""

    name: str

    def constants(self) -> Mapping[str, Sequence[Any]]:
        """Outputs of the program's constant methods, by name."""

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method; its outputs stay valid across later runs."""


def open_program(path: Path, backend: str, executor: str) -> Executor:
    """The program at `path`, opened by the executor asked for or the one that fits its backend.

    Raises UnsupportedError when the backend and the executor do not fit and ArtifactError when the
    program cannot be read.
    """
    fitting = {"xnnpack": "executorch"}.get(backend)
    if fitting is None:
        raise UnsupportedError(f"{path}: backend {backend!r}: this version runs xnnpack artifacts")
    if executor not in ("auto", fitting):
        raise UnsupportedError(f"executor {executor!r} does not run {backend} artifacts")
    from eagle_aot.runtime_runner.executors.executorch import ExecuTorchExecutor  # slow import

    return ExecuTorchExecutor(path)
