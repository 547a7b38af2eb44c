"""Traces methods into graphs that their backend can lower."""

from collections.abc import Mapping

from torch.export import ExportedProgram

from eagle_aot.export.lowering.backend import multiprocessors
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.methods import export_methods
from eagle_aot.export.prepare.dense_rows import read_dense_weights_once
from eagle_aot.export.spec import CUDA


def traced(
    methods: Mapping[str, MethodSpec], max_batch_size: int, backend: str
) -> dict[str, ExportedProgram]:
    """Trace all methods; returns them by their names. Raises what `torch.export` raises."""
    programs = export_methods(methods, max_batch_size)
    if backend == CUDA:
        for name, program in programs.items():
            few_rows = methods[name].few_rows
            read_dense_weights_once(program, multiprocessors(), few_rows=few_rows)
    return programs
