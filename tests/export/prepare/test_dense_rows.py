"""Dense linears of a traced method become the operator that reads a weight once."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from eagle_aot.export.prepare.dense_rows import LINEAR, read_dense_weights_once

DENSE = torch.ops.eagle_aot.dense_small_m.default
ONE_TILE = 4
"""Multiprocessors of a GPU that the small layers below fill."""


class Layers(nn.Module):
    """A linear without a bias, one with, one of few columns, and one that is the output."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.plain = nn.Linear(256, 96, bias=False, dtype=dtype)
        self.biased = nn.Linear(96, 40, dtype=dtype)
        self.odd = nn.Linear(40, 20, bias=False, dtype=dtype)
        self.last = nn.Linear(20, 136, bias=False, dtype=dtype)
        self.table = nn.Linear(136, 2048, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(self.last(self.odd(self.biased(self.plain(x)))))


def traced(model: nn.Module, x: Tensor, most: int | None) -> ExportedProgram:
    rows = {} if most is None else {1: Dim("rows", min=1, max=most)}
    return torch.export.export(model, (x,), dynamic_shapes=(rows,))


def targets(program: ExportedProgram) -> list[object]:
    return [node.target for node in program.graph.nodes]


@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_the_dense_kernel_changes_no_result(multiprocessors: int) -> None:
    model, x = Layers(), torch.randn(1, 5, 256).bfloat16()
    program = traced(model, x, 64)
    read_dense_weights_once(program, multiprocessors, few_rows=True)
    assert targets(program).count(DENSE) == 3  # all but the biased one and that of 20 columns
    assert targets(program).count(LINEAR) == 2
    program.validate()
    for rows in (1, 5, 64):
        x = torch.randn(1, rows, 256).bfloat16()
        expected, found = model(x), program.module()(x)
        assert found.dtype == torch.bfloat16 and found.shape == expected.shape
        assert torch.allclose(found.float(), expected.float(), atol=0.02)


def test_a_prefill_uses_the_dense_kernel_for_a_fixed_few_rows() -> None:
    class Prompt(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return self.table(super().forward(x)[:, -1:, :136])

    program = traced(Prompt(), torch.randn(1, 300, 256).bfloat16(), 1024)
    read_dense_weights_once(program, 132, few_rows=False)
    assert targets(program).count(DENSE) == 1 and targets(program).count(LINEAR) == 5


def test_float32_linears_are_not_replaced() -> None:
    program = traced(Layers(torch.float32), torch.randn(1, 5, 256), 64)
    read_dense_weights_once(program, 132, few_rows=True)
    assert DENSE not in targets(program)


def test_splits_follow_from_the_weight_and_the_gpu() -> None:
    program = traced(Layers(), torch.randn(1, 5, 256).bfloat16(), 64)
    read_dense_weights_once(program, ONE_TILE, few_rows=True)
    splits = [node.args[2] for node in program.graph.nodes if node.target is DENSE]
    assert splits == [2, 1, 1]
