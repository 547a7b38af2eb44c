"""Dense linears of a traced method are replaced by one operator; modules are replaced."""

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from eagle_aot.export.prepare.dense_rows import LINEAR, read_dense_weights_once
from eagle_aot.export.prepare.int4 import dequantize_int4
from eagle_aot.export.prepare.modules import clone_modules, consume
from eagle_aot.targets import load_target
from eagle_aot.targets.int4 import Int4Linear

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
    assert targets(program).count(DENSE) == 4  # all but that of 20 columns
    assert targets(program).count(LINEAR) == 1
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
    assert splits == [2, 1, 1, 1]


class Shared(nn.Module):
    """One linear under two names, a name without a module, and a buffer."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.part = nn.ModuleDict({"again": self.linear})
        self.register_module("nothing", None)
        self.register_buffer("cache", torch.zeros(3))


def tensors(model: nn.Module) -> list[tuple[str, int]]:
    pairs = [*model.named_parameters(), *model.named_buffers()]
    return [(name, id(tensor)) for name, tensor in pairs]


def test_a_clone_shares_tensors_and_not_modules() -> None:
    model = Shared()
    clone = clone_modules(model)
    assert tensors(clone) == tensors(model)
    assert clone.linear is clone.part["again"] and clone.linear is not model.linear
    clone.part["again"] = nn.Identity()
    clone.cache = torch.ones(3)
    assert isinstance(model.part["again"], nn.Linear) and not model.cache.any()


def test_a_consumed_model_has_no_children() -> None:
    model = Shared()
    before, part = tensors(model), model.part
    assert tensors(consume(model)) == before
    assert not list(model.children()) and isinstance(part["again"], nn.Linear)


@torch.no_grad()
def test_dequantising_leaves_the_model_as_it_was() -> None:
    target = load_target("gemma4-tiny", max_seq_len=64)
    assert isinstance(target, nn.Module)
    before = dict(target.named_modules())
    dense = dequantize_int4(target)
    assert dict(target.named_modules()) == before
    assert any(isinstance(module, Int4Linear) for module in target.modules())
    assert not any(isinstance(module, Int4Linear) for module in dense.modules())
    assert dense.embed_weight is target.embed_weight
