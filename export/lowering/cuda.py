"""Lowering for NVIDIA GPUs: ExecuTorch's CUDA backend, which compiles with AOTInductor.

The model stays on the host; its weights visit the GPU while a method is compiled. Kernels are
tuned on the GPU that is there, and the program runs on its kind alone.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from torch._inductor import config
from torch.export import ExportedProgram
from torch.fx.experimental import proxy_tensor

from eagle_aot.artifact import PROGRAM, WEIGHTS, Device
from eagle_aot.export.lowering.backend import ASSEMBLE, multiprocessors
from eagle_aot.export.lowering.empty_caches import caches_kept_empty
from eagle_aot.export.lowering.in_place import writes_unwrapped
from eagle_aot.export.lowering.kernel_mutations import mutations_memoised
from eagle_aot.export.lowering.large_examples import large_examples_in_one_place
from eagle_aot.export.lowering.own_objects import objects_of_their_own
from eagle_aot.export.lowering.realised_once import inputs_realised_once

CACHE_DIR = "TORCHINDUCTOR_CACHE_DIR"


def lower(
    programs: dict[str, ExportedProgram],
    constants: Mapping[str, Any],
    begin: Callable[[str], None],
) -> ExecutorchProgramManager:
    """Lower all methods into one program that names each weight and cache once.

    Inputs and outputs stay on the device. Must run within `workspace`, and be written there: the
    program's weights are files of it.
    """
    edge = compiled(programs, constants, begin)
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


def compiled(
    programs: dict[str, ExportedProgram],
    constants: Mapping[str, Any],
    begin: Callable[[str], None],
) -> EdgeProgramManager:
    """The methods compiled, each as a call of what it was compiled to."""
    with (
        quiet_tuning(),
        announced(begin),
        mutations_memoised(),
        caches_kept_empty(),
        writes_unwrapped(),
        inputs_realised_once(),
        large_examples_in_one_place(),
        objects_of_their_own(),
        # A GPU's program has no vectors on the host: no need to find out by compiling which work.
        config.patch({"cpp.vec_isa_ok": False}),
    ):
        return to_edge_transform_and_lower(
            programs,
            partitioner={name: [CudaPartitioner(compile_specs(name))] for name in programs},
            constant_methods=dict(constants),
            compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
        )


def compile_specs(method: str) -> list[CompileSpec]:
    """Options of one method's compilation. Low memory: caches take no room on the GPU."""
    return [
        CudaBackend.generate_method_name_compile_spec(method),
        CompileSpec("low_memory_mode", b"ON"),
    ]


@contextmanager
def announced(begin: Callable[[str], None]) -> Iterator[None]:
    """Tell `begin` of each method that is compiled; the backend first moves it to the GPU."""
    move = CudaBackend.move_program_to_device

    def announce_and_move(
        program: ExportedProgram, device: str, specs: list[CompileSpec]
    ) -> ExportedProgram:
        forget_last_trace()
        begin(f"lower {CudaBackend.method_name_from_compile_specs(specs)}")
        return move(program, device, specs)

    with patch.object(CudaBackend, "move_program_to_device", announce_and_move):
        yield


def forget_last_trace() -> None:
    """Let the garbage collector have the method that was compiled last.

    torch keeps the nodes of its last trace, for a diagnosis of its own, and with them the graph and
    AOTInductor's clones of caches: they would lie beside those of the next method.
    """
    getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {}).clear()


@contextmanager
def quiet_tuning() -> Iterator[None]:
    """Keep Inductor from reporting every kernel it tries, and those that do not fit this GPU.

    It logs them, and writes them to Python's stderr as well.
    """
    log = logging.getLogger("torch._inductor.select_algorithm")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
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
    """What a program compiled here is for."""
    major, minor = torch.cuda.get_device_capability()
    return Device(
        name=torch.cuda.get_device_name(),
        compute_capability=f"{major}.{minor}",
        multiprocessors=multiprocessors(),  # for which products are split
        cuda=torch.version.cuda or "",
    )


@contextmanager
def workspace(directory: Path) -> Iterator[None]:
    """An Inductor cache of this export alone, unless the environment names one.

    A second, larger export that reuses the cache of a first has failed to link: kernels of both
    were defined twice.
    """
    if os.environ.get(CACHE_DIR):
        yield
        return
    directory.mkdir()
    os.environ[CACHE_DIR] = str(directory)
    try:
        yield
    finally:
        del os.environ[CACHE_DIR]
        shutil.rmtree(directory, ignore_errors=True)
