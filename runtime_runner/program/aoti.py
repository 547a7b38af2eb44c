"""Runs a CUDA artifact in this process with PyTorch alone, without the ExecuTorch runtime.

The program holds one AOTInductor shared object per method. They share one set of weights and
caches, which is loaded here and bound to all of them.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_aot.artifact import PROGRAM, WEIGHTS, Constants, Manifest
from eagle_aot.common.errors import ArtifactError, UnsupportedError
from eagle_aot.runtime_runner.program.compiled_method import CompiledMethod
from eagle_aot.runtime_runner.program.device_weights import DeviceWeights
from eagle_aot.runtime_runner.program.executor import Part
from eagle_aot.runtime_runner.program.pte import (
    CudaMethod,
    Program,
    TensorData,
    check_caches,
    check_weights,
)

ALIGNMENT = 16  # bytes, which compiled kernels assume of every input


class AotiExecutor:
    """Runs methods on the current CUDA device and stream, one sequence at a time."""

    name = "aoti"

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        methods: Sequence[str],
        *,
        cuda_graphs: bool = True,
        cache_memory: int | None = None,
    ) -> None:
        """Load the named methods. With `cuda_graphs`, `repeat` records its step. Caches take at
        most `cache_memory` bytes, or what the GPU has free.

        Raises UnsupportedError on a machine that the artifact was not compiled for and
        ArtifactError when its files cannot be used."""
        check_machine(directory, manifest)
        if WEIGHTS not in manifest.files:
            raise ArtifactError(f"{directory}: has no {WEIGHTS}: export again")
        self._program = Program.open(directory / PROGRAM)
        data = TensorData.open(directory / WEIGHTS)
        check_weights(self._program, data)
        check_caches(self._program, manifest.caches)
        self.methods = {name: self._find(directory, name) for name in methods}
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.weights = DeviceWeights(
            data,
            self.methods.values(),
            self.device,
            manifest.caches,
            Constants.from_methods(self._program.constants),
            cache_memory,
        )
        self.pages = self.weights.pages
        self._compiled = {name: self._load(directory, m) for name, m in self.methods.items()}
        self.records = cuda_graphs
        self._graph_pool: Any = torch.cuda.graph_pool_handle()

    def constants(self) -> Mapping[str, Sequence[Any]]:
        return self._program.constants

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self._compiled[method].run([aligned(x) for x in inputs])

    def repeat(self, step: Callable[[], Part]) -> Callable[[], Part]:
        """Record `step` as a CUDA graph; it runs once before."""
        return record(step, self._graph_pool) if self.records else step

    def _find(self, directory: Path, name: str) -> CudaMethod:
        if name not in self._program.methods:
            raise ArtifactError(f"{directory / PROGRAM}: method {name} is missing: export again")
        return self._program.methods[name]

    def _load(self, directory: Path, method: CudaMethod) -> CompiledMethod:
        library = self._program.named_data(method.library_key)
        digest = hashlib.sha256(library).hexdigest()
        if not method.library_key.startswith(digest):
            raise ArtifactError(
                f"{directory / PROGRAM}: the library of {method.name} does not match its hash: "
                "export again"
            )
        tensors = {weight.fqn: self.weights.tensor(weight) for weight in method.weights}
        return CompiledMethod(method, library, tensors, self.device)


def check_machine(directory: Path, manifest: Manifest) -> None:
    """Raise UnsupportedError unless this process can run what the artifact was compiled for."""
    if not torch.cuda.is_available():
        raise UnsupportedError(f"{directory}: needs an NVIDIA GPU, and this machine shows none")
    compiled_for = manifest.device.compute_capability if manifest.device else None
    here = ".".join(map(str, torch.cuda.get_device_capability()))
    if compiled_for != here:
        raise UnsupportedError(
            f"{directory}: compiled for compute capability {compiled_for}, this GPU has {here}: "
            "export on this machine"
        )
    built, installed = minor(manifest.versions.get("torch", "")), minor(torch.__version__)
    if built != installed:
        raise UnsupportedError(
            f"{directory}: compiled with torch {built}, this is torch {installed}: "
            "install that version or export again"
        )


def minor(version: str) -> str:
    """Return `2.11` for `2.11.0+cu130`: compiled code runs on every patch of a minor version."""
    return ".".join(version.split(".")[:2])


def aligned(x: Tensor) -> Tensor:
    """Return `x` of any shape [...], copied if it is a view that compiled code cannot take."""
    if x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def record(step: Callable[[], Part], pool: Any) -> Callable[[], Part]:
    """Run `step` once, which loads everything lazy, then record it as a CUDA graph for replay.

    Recordings share the memory `pool`, because no two of them run at the same time.
    """
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = step()

    def replay() -> Part:
        graph.replay()
        return result

    return replay
