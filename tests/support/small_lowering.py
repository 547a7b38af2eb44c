"""A pair whose CUDA methods are compiled in no time, here or in processes of their own.

There is no GPU: what is compiled is a graph's text. `main` is what such a process runs, `wait` what
one runs that never ends. As a program it compiles that way until it is killed:
`python -m support.small_lowering DIRECTORY`.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from tqdm import tqdm

from eagle_aot.artifact import COPY_ROWS, PREFILL, TARGET_VERIFY
from eagle_aot.common.progress import Progress
from eagle_aot.export import ExportSpec, resolve_checkpoints
from eagle_aot.export.lengths import method_lengths
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.lowering import parallel
from eagle_aot.export.lowering.patches import Replacement
from eagle_aot.export.methods import method_specs, trace_methods
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.export.spec import CUDA
from eagle_aot.targets.decoder.kv_cache import CacheSpec

SEQUENCES = 2
LENGTHS = method_lengths(128, 256, 64, SEQUENCES)
METHODS = [PREFILL, TARGET_VERIFY, COPY_ROWS]
PID = "pid"


def small_pair() -> Pair:
    """Return one random layer, without a head."""
    checkpoints = resolve_checkpoints(
        ExportSpec(target_model="gemma4-tiny", load_format="dummy", dummy_layers=1, drafter="ngram")
    )
    sizes = CacheSpec(256, torch.bfloat16, SEQUENCES, on_host=True)
    return pack_int4(load_pair(checkpoints, torch.bfloat16, sizes).pair, 132)


def small_programs(pair: Pair) -> dict[str, ExportedProgram]:
    return trace_methods(method_specs(pair, LENGTHS, use_splitk=True), SEQUENCES, CUDA)


def in_parallel(
    pair: Pair, directory: Path, progress: Progress, run: str = "main"
) -> AbstractContextManager[Replacement | None]:
    """Compile methods of the pair in processes that run a function of this module."""
    parallel.WORKER = f"from support.small_lowering import {run}; {run}()"
    job = parallel.Job(pair, LENGTHS, use_splitk=True, threads=1)
    methods = METHODS if run == "main" else METHODS[:1]
    return parallel.compiled_in_parallel(
        methods, job, jobs=2, directory=directory / "parallel", progress=progress
    )


def main() -> None:
    """Compile a method's text; fail at the last method."""
    with compiling_text(fails=sys.argv[2] == METHODS[-1]):
        parallel.main()


def wait() -> None:
    """Write which process this is, and compile for ten minutes."""

    def compile_method(job: parallel.Job, name: str, directory: Path) -> parallel.Compiled:
        tqdm(disable=True)  # like Inductor's, which is not shown
        (directory.parent / PID).write_text(f"{os.getpid()}\n")
        time.sleep(600)
        raise AssertionError("not killed")

    parallel.compile_method = compile_method
    parallel.main()


@contextmanager
def compiling_text(fails: bool = False) -> Iterator[None]:
    """Let the CUDA backend do all but move methods to a GPU and compile them."""
    from executorch.backends.cuda.cuda_backend import CudaBackend  # takes seconds

    def move(backend: object, program: ExportedProgram, *_: object) -> ExportedProgram:
        if fails:
            raise RuntimeError("CUDA error: an illegal access\nand how to debug it")
        return program

    replaced = {
        "move_program_to_device": classmethod(move),
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
    """Return what AOTInductor returns: the path of a library, here of text, and the weights.
    Constants of the graph are in the library."""
    from torch.export.pt2_archive._package_weights import TensorProperties, Weights

    directory = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    os.makedirs(directory, exist_ok=True)
    file, path = tempfile.mkstemp(".wrapper.so", dir=directory)
    os.close(file)
    Path(path).write_text(str(module.graph))
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {
        name: (tensor.detach(), TensorProperties(tensor))
        for name, tensor in tensors.items()
        if not name.startswith("_lifted_tensor_constant")
    }
    return [path, Weights(weights)]


if __name__ == "__main__":
    # What a shell runs in the background is not interrupted unless it asks to be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with in_parallel(small_pair(), Path(sys.argv[1]), Progress(), "wait"):
        time.sleep(600)
