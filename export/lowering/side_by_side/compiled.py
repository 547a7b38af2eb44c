"""A method that another process has compiled, on its way into the program of all."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any
from unittest.mock import patch

from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_weight_collector import CudaWeightArtifact, CudaWeightCollector
from executorch.exir._serialize._cord import FileBackedData
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from eagle_aot.common.errors import ExportError
from eagle_aot.export.lowering.side_by_side.shared_gpu import SharedGpu, gpu_bytes

PREPROCESS = "_preprocess_with_weight_collector"
"""What `CudaBackend` compiles a method by, and puts it among those that it has compiled."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of a method, in how many seconds, until when by `perf_counter`.

    `graph` is `graph_digest` of what it was given. Weights are files of the process that compiled
    it, and of whoever unpickles this from then on.
    """

    graph: str
    result: PreprocessResult
    weights: CudaWeightArtifact
    seconds: float
    ended: float


class Kept(CudaWeightCollector):
    """Keeps what was compiled apart from everything else."""

    result: PreprocessResult
    weights: CudaWeightArtifact

    def add_preprocess_result(
        self, result: PreprocessResult, artifact: CudaWeightArtifact, device_name: str
    ) -> None:
        self.result, self.weights = result, artifact


@contextmanager
def compiled_apart(gpu: SharedGpu, place: int) -> Iterator[list[Compiled]]:
    """Let the CUDA backend compile beside other processes, into the list that this gives, as one
    at that place of their queue may."""
    compiled: list[Compiled] = []
    compile_one = getattr(CudaBackend, PREPROCESS)

    def compile_apart(
        program: ExportedProgram, specs: list[CompileSpec], _: CudaWeightCollector
    ) -> PreprocessResult:
        graph, kept = graph_digest(program), Kept()
        with gpu.memory(place, gpu_bytes(program)):
            started = time.perf_counter()
            result = compile_one(program, specs, kept)
            ended = time.perf_counter()  # before another begins in the room that this one had
        compiled.append(Compiled(graph, kept.result, kept.weights, ended - started, ended))
        return result

    with gpu.quiet_timing(), patch.object(CudaBackend, PREPROCESS, compile_apart):
        yield compiled


@contextmanager
def taken_over(wait: Callable[[str], Compiled]) -> Iterator[None]:
    """Let the CUDA backend take each method, by its name, from `wait` and compile none."""

    def take_over(
        program: ExportedProgram, specs: list[CompileSpec], collector: CudaWeightCollector
    ) -> PreprocessResult:
        name = CudaBackend.method_name_from_compile_specs(specs)
        compiled = wait(name)
        if compiled.graph != graph_digest(program):
            raise ExportError(f"lowering failed: {name} came out differently beside: use --jobs 1")
        device = CudaBackend.get_device_name()
        collector.add_preprocess_result(compiled.result, compiled.weights, device)
        return compiled.result

    with patch.object(CudaBackend, PREPROCESS, take_over):
        yield


def graph_digest(program: ExportedProgram) -> str:
    """SHA-256 of a graph and of what its inputs and outputs are."""
    return hashlib.sha256(f"{program.graph}{program.graph_signature}".encode()).hexdigest()


def _given_away(data: FileBackedData) -> tuple[Any, ...]:
    """The file as whoever unpickles it will own it; here nobody removes it any more."""
    if data._finalizer is not None:
        data._finalizer.detach()
    return FileBackedData, (data._path, True, data.sha256())


ForkingPickler.register(FileBackedData, _given_away)
