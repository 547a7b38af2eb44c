"""Operators on a machine without triton, which is one process for all of them."""

import subprocess
import sys

CODE = """
import sys
sys.modules["triton"] = None  # importing it raises ImportError
import torch
from torch.export import Dim
from eagle_aot.triton_kernels.int4_gemm import int4_linear
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk

class Layer(torch.nn.Module):
    def forward(self, x, codes, scales):
        return int4_linear(x, codes, scales, None, 6, 1)

class Attention(torch.nn.Module):
    def forward(self, q, k, v, positions, sequences, tail):
        return sdpa_splitk(q, k, v, positions, sequences, tail, 1.0, 0, 0)

def show(module, inputs, shapes):
    program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=True)
    print([node.name for node in program.graph.nodes if node.op == "call_function"])
    print(program.module()(*inputs).unique().tolist())

weight = torch.zeros(1, 1, 4096, dtype=torch.int16), torch.ones(1, 1, 512).bfloat16()
rows = Dim("rows", min=1, max=4)
show(Layer(), (torch.ones(1, 4, 32).bfloat16(), *weight), ({1: rows}, None, None))

cache = torch.ones(2, 3, 16, 4)
positions = torch.arange(4).repeat(2, 1)
b, t = Dim("b", min=1, max=8), Dim("t", min=1, max=8)
tail = (positions.unsqueeze(-1) + torch.arange(-15, 1)).clamp(min=-1)
inputs = torch.ones(2, 4, 2, 4), cache, cache, positions, torch.arange(2), tail
shapes = {0: b, 1: t}, None, None, {0: b, 1: t}, {0: b}, {0: b, 1: t}
show(Attention(), inputs, shapes)
"""


def test_operators_need_no_triton_on_a_cpu() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    int4, attention = ["['int4_small_m', 'flatten']", "[-256.0]"], ["['sdpa_splitk']", "[1.0]"]
    assert run.stdout.splitlines() == [*int4, *attention], run.stderr
    assert "Triton not available" not in run.stderr  # what `triton_op` would say
