"""Lowering for any CPU: ExecuTorch with XNNPACK, weights in float32."""

from collections.abc import Mapping
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
from torch import nn
from torch.export import ExportedProgram

from eagle_aot.targets.decoder.weights import replace_linear
from eagle_aot.targets.int4 import Int4Linear


class FloatPartitioner(XnnpackPartitioner):
    """XNNPACK's partitioner for our float graphs, in which `linear` is all that must stay whole.

    Saying so, without a per-node check, spares ExecuTorch two rounds of decomposition per method:
    a quarter of the lowering time, for the same delegates byte for byte.
    """

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], None]:
        return [torch.ops.aten.linear.default], None


def fold_int4(model: nn.Module) -> None:
    """Replace every INT4 linear by the dense one it stands for, in place.

    XNNPACK has no weight-only INT4 kernel, and dequantising in every step would cost more than the
    product itself.
    """
    for name, module in list(model.named_modules()):
        if isinstance(module, Int4Linear):
            replace_linear(model, name, module.dense())


def lower(
    programs: dict[str, ExportedProgram], constants: Mapping[str, Any]
) -> ExecutorchProgramManager:
    """Lower all methods into one program that shares weights and caches between them.

    Caches are mutable buffers of the graph; equal names share one place in memory at run time.
    """
    edge = to_edge_transform_and_lower(
        programs,
        partitioner={name: [FloatPartitioner()] for name in programs},
        constant_methods=dict(constants),
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    planning = MemoryPlanningPass(alloc_graph_input=False, share_mutable_buffers=True)
    return edge.to_executorch(
        ExecutorchBackendConfig(
            memory_planning_pass=planning,
            emit_mutable_buffer_names=True,
            run_reinplace_pass=True,  # caches are written in place, not copied whole
        )
    )
