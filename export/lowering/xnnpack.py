"""Lowering for any CPU: ExecuTorch with XNNPACK, in float32 or as `--cpu-weights` says."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.passes import MemoryPlanningPass
from torch.export import ExportedProgram

from eagle_aot.artifact import PROGRAM
from eagle_aot.export.lowering.backend import ASSEMBLE
from eagle_aot.export.lowering.quick_passes import quick_passes, rare_collections
from eagle_aot.export.lowering.shared_tables import SharedTables


class LinearPartitioner(XnnpackPartitioner):
    """XNNPACK's partitioner for our graphs, in which `linear` is all that must stay whole.

    Saying so, without a per-node check, spares ExecuTorch two rounds of decomposition per method:
    a quarter of the lowering time, for the same delegates byte for byte.
    """

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], None]:
        return [torch.ops.aten.linear.default], None


@rare_collections()
def lower(
    programs: dict[str, ExportedProgram],
    constants: Mapping[str, Any],
    begin: Callable[[str], None],
) -> ExecutorchProgramManager:
    """Lower all methods into one program that shares weights and caches between them.

    Caches are mutable buffers of the graph; equal names share one place in memory at run time.
    """
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    with quick_passes():
        edge = to_edge_transform_and_lower(
            programs,
            partitioner={name: [LinearPartitioner()] for name in programs},
            constant_methods=dict(constants),
            compile_config=config,
        )
    edge.compile_config = config  # which it forgets, and would trace all for orders of dimensions
    begin(ASSEMBLE)
    planning = MemoryPlanningPass(alloc_graph_input=False, share_mutable_buffers=True)
    return edge.to_executorch(
        ExecutorchBackendConfig(
            memory_planning_pass=planning,
            emit_mutable_buffer_names=True,
            external_constants=SharedTables(edge),
            run_reinplace_pass=True,  # caches are written in place, not copied whole
        )
    )


def write(program: ExecutorchProgramManager, directory: Path) -> None:
    """Write `model.pte`, and `model.ptd` where there are shared tables."""
    with (directory / PROGRAM).open("wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(directory))


def workspace(directory: Path) -> AbstractContextManager[None]:
    """Nothing is needed around a lowering."""
    return nullcontext()


def device_record() -> None:
    """A program that runs anywhere."""
