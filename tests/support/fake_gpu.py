"""A GPU that processes share and that is not there: what is compiled for it is its graph's text."""

import os
import tempfile
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
    """What AOTInductor returns: the path of a library, here of text, and the weights; constants of
    the graph are in the library."""
    from torch.export.pt2_archive._package_weights import TensorProperties, Weights

    directory = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    os.makedirs(directory, exist_ok=True)
    file, path = tempfile.mkstemp(".wrapper.so", dir=directory)
    os.close(file)
    Path(path).write_text(str(module.graph))
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {
        name: (tensor.detach(), TensorProperties(tensor))
        for name, tensor in held.items()
        if not name.startswith("_lifted_tensor_constant")
    }
    return [path, Weights(weights)]


class FakeGpu(SharedGpu):
    """Compiles text, and fails at the last method of the queue."""

    def __init__(self, context: SpawnContext, room: int, methods: int) -> None:
        super().__init__(context, room, methods)
        self._last = methods - 1

    @contextmanager
    def quiet_timing(self) -> Iterator[None]:
        with super().quiet_timing(), compiling_text():
            yield

    @contextmanager
    def memory(self, place: int, size: int) -> Iterator[None]:
        with super().memory(place, size):
            if place == self._last:
                raise RuntimeError("CUDA error: an illegal access\nand how to debug it")
            yield
