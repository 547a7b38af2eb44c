"""A GPU that processes share and that is not there: what is compiled for it is its graph's text."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing.context import SpawnContext
from pathlib import Path
from unittest.mock import patch

import torch
from torch.fx import GraphModule

from eagle_aot.export.lowering.side_by_side.shared_gpu import SharedGpu


@contextmanager
def compiling_text() -> Iterator[None]:
    """Let the CUDA backend do all it does but move methods to a GPU and compile them."""
    from executorch.backends.cuda.cuda_backend import CudaBackend  # takes seconds

    replaced = {
        "move_program_to_device": classmethod(lambda backend, program, *_: program),
        "get_extra_aoti_compile_context_manager": classmethod(lambda *_: nullcontext()),
    }
    with ExitStack() as stack:
        for name, replacement in replaced.items():
            stack.enter_context(patch.object(CudaBackend, name, replacement))
        stack.enter_context(patch.object(torch._inductor, "aot_compile", compile_text))
        yield


def compile_text(
    module: GraphModule, inputs: object, options: Mapping[str, object]
) -> list[object]:
    """What AOTInductor returns: the path of a library, here of text, and the weights."""
    from torch.export.pt2_archive._package_weights import TensorProperties, Weights

    directory = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    os.makedirs(directory, exist_ok=True)
    file, path = tempfile.mkstemp(".wrapper.so", dir=directory)
    os.close(file)
    Path(path).write_text(str(module.graph))
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {name: (tensor.detach(), TensorProperties(tensor)) for name, tensor in held.items()}
    return [path, Weights(weights)]


class FakeGpu(SharedGpu):
    """Compiles text."""

    @contextmanager
    def quiet_timing(self) -> Iterator[None]:
        with super().quiet_timing(), compiling_text():
            yield


class BrokenGpu(SharedGpu):
    """Compiles nothing."""

    @contextmanager
    def quiet_timing(self) -> Iterator[None]:
        raise RuntimeError("CUDA error: an illegal access\nand how to debug it")
        yield


class SlowGpu(SharedGpu):
    """Compiles for ever; the file `pid`, set before, says in which process."""

    pid: Path

    def __init__(self, context: SpawnContext, room: int) -> None:
        super().__init__(context, room)
        self._told = self.pid

    @contextmanager
    def quiet_timing(self) -> Iterator[None]:
        self._told.write_text(f"{os.getpid()}\n")
        time.sleep(600)
        yield
