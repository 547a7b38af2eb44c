"""What tests ask of a traced method about its INT4 products."""

import torch
from torch.export import ExportedProgram


def int4_calls(program: ExportedProgram) -> tuple[int, int]:
    """How often the operators for few and for many rows are called."""
    int4 = torch.ops.eagle_aot
    targets = [node.target for node in program.graph.nodes]
    return targets.count(int4.int4_small_m.default), targets.count(int4.int4_large_m.default)
