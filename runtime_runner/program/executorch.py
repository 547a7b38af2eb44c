"""Runs an artifact with the official ExecuTorch runtime for Python.

The bindings are imported without `executorch.runtime`, a thin layer over them: for one warning's
class it imports the whole compiler, which takes 3.1 CPU seconds and 206 MB in every process that
runs an artifact (executorch 1.5.1, torch 2.13).
"""

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from executorch.extension.pybindings import _C as runtime
from torch import Tensor
from torch.torch_version import TorchVersion

from eagle_aot.artifact import PROGRAM, WEIGHTS, CacheBytes, Manifest
from eagle_aot.artifact.methods import constant_methods
from eagle_aot.common.errors import ArtifactError, UnsupportedError
from eagle_aot.common.process import captured_stderr
from eagle_aot.common.threads import torch_threads
from eagle_aot.runtime_runner.program.cache_pages import CachePages
from eagle_aot.runtime_runner.program.executor import Part, check_memory

BACKENDS = {"xnnpack": "XnnpackBackend", "cuda": "CudaBackend"}
"""The runtime's names of the backends that artifacts use."""
TORCH = "2.13"
"""The oldest torch that the runtime's wheel can share tensors with: older ones lay them out
differently."""


class ExecuTorchExecutor:
    """Runs a program where the runtime has its backend. Methods of one program share its caches.

    On a CPU the runtime computes with one thread per core of the machine, regardless of the
    process's affinity. It returns copies of its outputs, which torch would make with several
    threads; those would then spin on the cores that the next forward needs, which costs a quarter
    of the speed. So torch is limited to one thread during a run.
    """

    name = "executorch"
    records = False
    pages: CachePages | None = None

    def __init__(self, directory: Path, manifest: Manifest, methods: Sequence[str]) -> None:
        """Load the named methods.

        Raises UnsupportedError when the runtime lacks the artifact's backend or is not for the
        installed torch, or the host lacks the memory, and ArtifactError when the file is not a
        program or lacks a method."""
        path, weights = directory / PROGRAM, directory / WEIGHTS
        self.device = torch.device("cuda" if manifest.backend == "cuda" else "cpu")
        if self.device.type == "cpu":
            check_host(manifest)
        with native_stderr_muted():
            check_backend(manifest.backend)
            check_torch(TorchVersion(torch.__version__))
            try:
                self._program = runtime._load_program(
                    os.fsencode(path),  # a path need not be UTF-8
                    program_verification=runtime.Verification.InternalConsistency,
                    data_path=os.fsencode(weights) if weights.name in manifest.files else None,
                )
            except RuntimeError as error:
                raise ArtifactError(f"{directory}: not a readable ExecuTorch program") from error
            count = self._program.num_methods()
            names = {self._program.get_method_name(index) for index in range(count)}
            missing = [method for method in methods if method not in names]
            if missing:
                raise ArtifactError(f"{path}: method {missing[0]} is missing: export again")
            self._methods = {method: self._load(path, method) for method in methods}
            constant_names = sorted(names & set(constant_methods().values()))
            self._constants = {n: self._load(path, n)([]) for n in constant_names}

    def constants(self) -> Mapping[str, Sequence[Any]]:
        return self._constants

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method; raises ArtifactError when the runtime refuses."""
        try:
            with torch_threads(1):  # the runtime keeps the GIL, so no other thread notices
                return tuple(self._methods[method]([x.contiguous() for x in inputs]))
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]  # a native backtrace follows
            raise ArtifactError(f"{method} failed in the ExecuTorch runtime: {reason}") from error

    def repeat(self, step: Callable[[], Part]) -> Callable[[], Part]:
        return step

    def _load(self, path: Path, name: str) -> runtime.ExecuTorchMethod:
        try:
            return self._program.load_method(name)
        except RuntimeError as error:
            raise ArtifactError(f"{path}: method {name} cannot be loaded: {error}") from error


def check_backend(backend: str) -> None:
    """Raise UnsupportedError unless the installed runtime was built with `backend`."""
    name = BACKENDS[backend]
    if not runtime._is_available(name):
        raise UnsupportedError(
            f"the installed executorch has no {name}: install a build of executorch with {backend} "
            "support, or use --executor aoti"
        )


def check_torch(installed: TorchVersion) -> None:
    """Raise UnsupportedError where torch is older than the runtime can share tensors with."""
    if installed < TORCH:
        raise UnsupportedError(
            f"the ExecuTorch runtime needs torch {TORCH}, and {installed} is installed: "
            f"pip install 'torch=={TORCH}.*'"
        )


def check_host(manifest: Manifest) -> None:
    """Raise UnsupportedError unless the host has enough memory for a program and its caches."""
    if (caches := CacheBytes.of(manifest)) is not None:
        files = manifest.files
        weights = sum(files[name].bytes for name in (PROGRAM, WEIGHTS) if name in files)
        check_memory(weights, caches.bytes, caches.sequences, torch.device("cpu"))


@contextmanager
def native_stderr_muted() -> Iterator[None]:
    """Drop what the runtime prints to stderr while it probes the CPU at its start.

    It writes through Python's stream and through the file descriptor.
    """
    sys.stderr.flush()
    with redirect_stderr(io.StringIO()), captured_stderr():
        yield
