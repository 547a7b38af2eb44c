"""Fewer traces on the way to edge operators, and the same program byte for byte."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge
from executorch.exir.pass_base import ExportPass
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from eagle_aot.export.lowering.joined_passes import joined_passes


class Mixed(nn.Module):
    """Something for each pass: views, scalars, a length as operand, two types, idle operators."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        views = x.view(x.shape[0] * x.shape[1], 4).t().unsqueeze(0)
        scalars = torch.where(x > 0.5, 2.0, x * 3 + 1)
        types = ids.unsqueeze(-1) * scalars + x.shape[1]
        nothing = torch.cat([types.to(torch.float32)[:, :], x[:, :, :0]], dim=-1)
        return nothing.matmul(x.transpose(1, 2)) / 7 + views.sum()


def traced() -> ExportedProgram:
    rows = Dim("rows", min=2, max=16)
    inputs = torch.randn(1, 8, 4), torch.arange(8)[None]
    return torch.export.export(Mixed(), inputs, dynamic_shapes=({1: rows}, {1: rows}), strict=False)


def lowered(surrounding: AbstractContextManager[None]) -> EdgeProgramManager:
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    with surrounding:
        return to_edge(traced(), compile_config=config)


def test_the_program_is_the_same() -> None:
    expected = lowered(nullcontext()).to_executorch().buffer
    assert lowered(joined_passes()).to_executorch().buffer == expected


def test_a_graph_is_traced_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, traces = ExportPass.call_submodule, list[ExportPass]()

    def counted(self: ExportPass, *inputs: object) -> object:
        traces.append(self)
        return trace(self, *inputs)

    monkeypatch.setattr(ExportPass, "call_submodule", counted)
    assert count(traces, lambda: lowered(joined_passes())) == 2
    assert count(traces, lambda: lowered(nullcontext())) == 6, "and once by a pass of PyTorch's"


def count(traces: list[ExportPass], action: Callable[[], object]) -> int:
    traces.clear()
    action()
    return len(traces)
