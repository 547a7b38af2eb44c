"""Lowering for NVIDIA GPUs: ExecuTorch's CUDA backend, which compiles with AOTInductor.

The model stays on the host; its weights visit the GPU while a method is compiled. Kernels are
tuned on the GPU that is there, and the program runs on its kind alone.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.backends.cuda.cuda_weight_collector import CudaWeightCollector
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.export import ExportedProgram
from torch.fx import Graph

from eagle_aot.artifact import PROGRAM, WEIGHTS, Device
from eagle_aot.export.lowering.backend import ASSEMBLE, CACHE_DIR, named_cache_dir
from eagle_aot.export.lowering.join_layers import join_layers
from eagle_aot.export.lowering.patches import (
    COMPILE_METHOD,
    CUDA,
    Patch,
    Replacement,
    applied,
    forget_last_trace,
)
from eagle_aot.triton_kernels.device import H100, capability, multiprocessors

PATCHES: tuple[Patch, ...] = CUDA


def lower(
    programs: dict[str, ExportedProgram],
    constants: Mapping[str, Any],
    begin: Callable[[str], None],
    take_compiled: Replacement | None = None,
) -> ExecutorchProgramManager:
    """Lower all methods into one program that names each weight and cache once.

    Inputs and outputs stay on the device. Must run within `workspace`, and be written there: the
    program's weights are files in it. `take_compiled`, if given, replaces what compiles a method.
    """

    def announced(compile_one: Callable[..., PreprocessResult]) -> Callable[..., PreprocessResult]:
        return partial(announce, begin, compile_one)

    replacements = {COMPILE_METHOD: take_compiled or announced}
    edge = compile_methods(programs, constants, replacements)
    begin(ASSEMBLE)
    return edge.to_executorch(
        ExecutorchBackendConfig(
            # Caches live in the delegate, shared by name; there is nothing here to share.
            memory_planning_pass=MemoryPlanningPass(
                alloc_graph_input=False, alloc_graph_output=False
            ),
            propagate_device_config=PropagateDeviceConfig(
                skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True
            ),
            enable_non_cpu_memory_planning=True,
        )
    )


def compile_methods(
    programs: dict[str, ExportedProgram],
    constants: Mapping[str, Any],
    replacements: Mapping[Patch, Replacement],
) -> EdgeProgramManager:
    """Compile all methods, each into a call of its library.

    `replacements` are for those entries of `patches.CUDA` that name none. On the GPU for which
    kernels of CUDA C++ are written, layers are joined in `programs`, in place.
    """
    from eagle_aot.triton_kernels.cuda_source import compiled_from_cuda

    settings = {
        "pre_grad_custom_pass": WriteInPlace(),
        # A GPU's program has no vectors on the host: do not compile some to find out which work.
        "cpp.vec_isa_ok": False,
    }
    joins = capability() == H100
    for program in programs.values() if joins else ():
        join_layers(program, multiprocessors())
    with (
        applied(CUDA, replacements),
        quiet_tuning(),
        compiled_from_cuda() if joins else nullcontext(),
        config.patch(settings),
    ):
        return to_edge_transform_and_lower(
            programs,
            partitioner={name: [CudaPartitioner(compile_specs(name))] for name in programs},
            constant_methods=dict(constants),
            compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
        )


def compile_specs(method: str) -> list[CompileSpec]:
    """Return the options of one method's compilation; caches take no GPU memory during it."""
    return [
        CudaBackend.generate_method_name_compile_spec(method),
        CompileSpec("low_memory_mode", b"ON"),
    ]


def announce(
    begin: Callable[[str], None],
    compile_one: Callable[..., PreprocessResult],
    edge_program: ExportedProgram,
    compile_specs: list[CompileSpec],
    collector: CudaWeightCollector,
) -> PreprocessResult:
    """Compile a method after calling `begin` with a name for the stage."""
    forget_last_trace()
    begin(f"lower {CudaBackend.method_name_from_compile_specs(compile_specs)}")
    return compile_one(edge_program, compile_specs, collector)


class WriteInPlace(CustomGraphPass):
    """Replaces wrappers around operators that write their arguments by the operators.

    A lowering wraps each of these in a function that returns what it would write. Inductor replaces
    an operator by its Triton kernels, but not a wrapped one: it would call that, and a program has
    no such operator. A value that is written is read only after the write, so the graph computes
    the same.
    """

    def __call__(self, graph: Graph) -> None:
        from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized

        wrapper = torch.ops.higher_order.auto_functionalized_v2
        for node in graph.find_nodes(op="call_function", target=wrapper):
            node.meta["only_clone_these_tensors"] = []
        decompose_auto_functionalized(graph)
        for copy in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            if copy.args[0] is copy.args[1]:  # a buffer that is written back into itself
                graph.erase_node(copy)
        graph.eliminate_dead_code()

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


@contextmanager
def quiet_tuning() -> Iterator[None]:
    """Keep Inductor from reporting every kernel it tries, and those that do not fit this GPU.

    It logs them, and writes them to Python's stderr as well.
    """
    log = logging.getLogger("torch._inductor.select_algorithm")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with open(os.devnull, "w") as null, redirect_stderr(null):
            yield
    finally:
        log.setLevel(level)


def write(program: ExecutorchProgramManager, directory: Path) -> None:
    """Write `model.pte`, which holds the compiled methods, and `model.ptd`, which holds weights."""
    with (directory / PROGRAM).open("wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(directory))
    (written,) = directory.glob("*.ptd")
    written.rename(directory / WEIGHTS)


def device_record() -> Device:
    """Return what a program that is compiled here is for: this kind of GPU."""
    major, minor = torch.cuda.get_device_capability()
    return Device(
        name=torch.cuda.get_device_name(),
        compute_capability=f"{major}.{minor}",
        multiprocessors=multiprocessors(),  # which the splits of products depend on
        cuda=torch.version.cuda or "",
    )


@contextmanager
def workspace(directory: Path) -> Iterator[None]:
    """Use an Inductor cache for this export only, unless the environment names one.

    An export that reused the cache of a smaller one failed to link: kernels of both were defined
    twice.
    """
    if named_cache_dir():
        yield
        return
    directory.mkdir()
    # Inductor names a directory within its own for Triton, unless one is named.
    before = {name: os.environ.get(name) for name in (CACHE_DIR, "TRITON_CACHE_DIR")}
    os.environ[CACHE_DIR] = str(directory)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
        shutil.rmtree(directory, ignore_errors=True)
