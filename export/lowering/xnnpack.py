"""Lowering for any CPU: ExecuTorch with XNNPACK, in float32 or as `--cpu-weights` says."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.lowered_backend_module import get_lowered_backend_modules
from executorch.exir.passes import MemoryPlanningPass
from torch import Tensor
from torch.export import ExportedProgram, default_decompositions

from eagle_aot.artifact import PROGRAM
from eagle_aot.export.lowering.backend import ASSEMBLE
from eagle_aot.export.lowering.patches import LOOPS, XNNPACK, Patch, Replacement, applied

PATCHES: tuple[Patch, ...] = XNNPACK

TAG = "model"
"""ExecuTorch's name for the file of shared tables."""


class LinearPartitioner(XnnpackPartitioner):
    """XNNPACK's partitioner for our graphs, in which `linear` is all that must stay whole.

    It decomposes a program once. ExecuTorch would do so twice, for the same delegates: a fifth of
    an export's time.
    """

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], None]:
        return [torch.ops.aten.linear.default], None

    def transform_for_pre_decomposition(self, ep: ExportedProgram) -> ExportedProgram:
        table = default_decompositions()
        table.pop(torch.ops.aten.linear.default)
        table[torch.ops.aten.gelu.default] = tanh_gelu
        decomposed = ep.run_decompositions(table)
        decomposed.run_decompositions = lambda *_: decomposed
        return decomposed


def tanh_gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Compute GELU's tanh form by a sigmoid: 0.5 (1 + tanh y) is sigmoid(2 y), with y as in
    https://arxiv.org/abs/1606.08415. XNNPACK's own operator is the erf form, whatever is requested,
    which differs by up to 5e-4."""
    if approximate != "tanh":
        return NotImplemented
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def lower(
    programs: dict[str, ExportedProgram],
    constants: Mapping[str, Any],
    begin: Callable[[str], None],
    take_compiled: Replacement | None = None,
) -> ExecutorchProgramManager:
    """Lower all methods into one program that shares weights and caches between them.

    Caches are mutable buffers of the graph; buffers of equal names share memory at run time.
    """
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    with applied(XNNPACK):
        edge = to_edge_transform_and_lower(
            programs,
            partitioner={name: [LinearPartitioner()] for name in programs},
            constant_methods=dict(constants),
            compile_config=config,
        )
    begin(ASSEMBLE)
    lowered = {name: edge.exported_program(name) for name in programs}
    tables = share_tables(lowered)
    # Collects the methods' data again. A lowering does not keep the configuration, without which
    # all methods would be traced once more.
    edge = EdgeProgramManager(lowered, dict(constants), config)
    planning = MemoryPlanningPass(alloc_graph_input=False, share_mutable_buffers=True)
    options = ExecutorchBackendConfig(
        memory_planning_pass=planning,
        emit_mutable_buffer_names=True,
        external_constants=lambda node: TAG if node.name in tables else None,
        run_reinplace_pass=True,  # caches are written in place, not copied whole
    )
    with applied(LOOPS):
        return edge.to_executorch(options)


def share_tables(programs: Mapping[str, ExportedProgram]) -> set[str]:
    """Move tables that are read by rows and also multiplied to a separate file.

    ExecuTorch stores what its own operators read among a program's constants, and what XNNPACK
    multiplies among the program's named data. Neither can point at the other, so a tied table would
    be stored twice: 113 of 652 MB of SmolLM2-135M. In a file of named data, equal contents are
    stored once. Moves what XNNPACK multiplies; returns the names of the constants that are to
    follow.
    """
    keys = {name: key for program in programs.values() for name, key in _constants(program)}
    shared = set[str]()
    for program in programs.values():
        for delegate in get_lowered_backend_modules(program.graph_module):
            data = delegate.named_data_store_output
            for key in dict.fromkeys(keys.values()):
                if key in data.pte_data:
                    data.external_data.setdefault(TAG, {})[key] = data.pte_data.pop(key)
                    shared.add(key)
    return {name for name, key in keys.items() if key in shared}


def _constants(program: ExportedProgram) -> Iterator[tuple[str, str]]:
    """Yield the weights that ExecuTorch's own operators read: the name in the graph, and the key
    that XNNPACK would give it."""
    for name, weight in program.graph_signature.inputs_to_parameters.items():
        values = program.state_dict[weight].detach().contiguous().view(-1).numpy()
        yield name, hashlib.sha256(values.tobytes()).hexdigest()


def write(program: ExecutorchProgramManager, directory: Path) -> None:
    """Write `model.pte`, and `model.ptd` where there are shared tables."""
    with (directory / PROGRAM).open("wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(directory))


def workspace(directory: Path) -> AbstractContextManager[None]:
    return nullcontext()


def device_record() -> None:
    """A program that runs anywhere."""
