"""ExecuTorch's lowering with fewer passes: graphs in order, and the same program."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.pass_base import ExportPass
from executorch.runtime import Runtime
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule, Node

from eagle_aot.export.lowering.patches import XNNPACK, applied
from eagle_aot.export.lowering.xnnpack import LinearPartitioner
from eagle_aot.export.lowering.xnnpack_replacements import sort_nodes
from eagle_aot.export.prepare.quantized_modules import DynamicLinear, int8_by_rows


def random_graph(size: int, seed: int) -> GraphModule:
    """Sums of nodes that came before, with an output."""
    rng, graph = random.Random(seed), Graph()
    nodes = [graph.placeholder("x")]
    for _ in range(size):
        nodes.append(graph.call_function(torch.add, (rng.choice(nodes), rng.choice(nodes))))
    graph.output(nodes[-1])
    return GraphModule(nn.Module(), graph)


@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
def test_sorting_a_shuffled_graph_keeps_its_result(size: int, seed: int) -> None:
    module, rng = random_graph(size, seed), random.Random(seed)
    expected = module(torch.tensor(0.5))
    first, *inner, last = module.graph.nodes
    rng.shuffle(inner)
    position = first
    for node in inner:
        position.append(node)
        position = node
    sort_nodes(module)
    assert {*module.graph.nodes} == {first, *inner, last}
    module.graph.lint()
    module.recompile()
    assert torch.equal(module(torch.tensor(0.5)), expected)


def test_sorting_leaves_a_graph_in_order_as_it_is() -> None:
    module = random_graph(20, 0)
    before: list[Node] = list(module.graph.nodes)
    sort_nodes(module)
    assert list(module.graph.nodes) == before


class Block(nn.Module):
    """Two delegates around an operator that XNNPACK does not take."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.linear(x)).flip(-1)
        return torch.cat((self.linear(y), x), dim=-1).transpose(1, 2).contiguous() * 2


@pytest.mark.parametrize(
    "linear",
    [lambda: nn.Linear(32, 32, bias=False), lambda: DynamicLinear(int8_by_rows(torch.eye(32)))],
    ids=["float32", "int8"],
)
def test_replacements_do_not_change_results(linear: Callable[[], nn.Module]) -> None:
    block, x = Block(linear()), torch.randn(1, 5, 32)
    expected = run(lowered(block, nullcontext()), x)
    assert torch.equal(run(lowered(block, applied(XNNPACK)), x), expected)
    assert expected.norm() > 1


def test_plain_partitions_need_one_pass() -> None:
    passes: list[int] = []

    class Manager(xnnpack_preprocess.XNNPACKPassManager):
        def transform(self) -> ExportedProgram:
            passes.append(len(self.passes))
            return super().transform()

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(xnnpack_preprocess, "XNNPACKPassManager", Manager)
        lowered(Block(nn.Linear(32, 32, bias=False)), applied(XNNPACK))
        assert passes and set(passes) == {1}
        passes.clear()
        lowered(Squared(), applied(XNNPACK))
    assert len(passes) == 1 and passes[0] > 10, "a square root is no plain operator"


class Squared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sqrt()


def run(program: bytes, x: Tensor) -> Tensor:
    method = Runtime.get().load_program(program).load_method("forward")
    assert method is not None
    return method.execute([x])[0].clone()


def lowered(block: nn.Module, surrounding: AbstractContextManager[None]) -> bytes:
    rows = ({1: Dim("rows", min=1, max=64)},)
    program = torch.export.export(block, (torch.ones(1, 8, 32),), dynamic_shapes=rows, strict=False)
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    with surrounding:
        edge = to_edge_transform_and_lower(
            program, partitioner=[LinearPartitioner()], compile_config=config
        )
    return bytes(edge.to_executorch().buffer)


class Mixed(nn.Module):
    """Something for each pass: views, scalars, a length as operand, two types, idle operators."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        views = x.view(x.shape[0] * x.shape[1], 4).t().unsqueeze(0)
        types = ids.unsqueeze(-1) * torch.where(x > 0.5, 2.0, x * 3 + 1) + x.shape[1]
        nothing = torch.cat([types.to(torch.float32)[:, :], x[:, :, :0]], dim=-1)
        return nothing.matmul(x.transpose(1, 2)) / 7 + views.sum()


def mixed_program() -> ExportedProgram:
    rows = Dim("rows", min=2, max=16)
    inputs = torch.randn(1, 8, 4), torch.arange(8)[None]
    return torch.export.export(Mixed(), inputs, dynamic_shapes=({1: rows}, {1: rows}), strict=False)


def edge_program(surrounding: AbstractContextManager[None]) -> EdgeProgramManager:
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    with surrounding:
        return to_edge(mixed_program(), compile_config=config)


def test_joined_passes_make_the_same_program() -> None:
    expected = edge_program(nullcontext()).to_executorch().buffer
    assert edge_program(applied(XNNPACK)).to_executorch().buffer == expected


def test_joined_passes_trace_a_graph_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, traces = ExportPass.call_submodule, list[ExportPass]()

    def counted(self: ExportPass, *inputs: object) -> object:
        traces.append(self)
        return trace(self, *inputs)

    monkeypatch.setattr(ExportPass, "call_submodule", counted)
    assert count(traces, lambda: edge_program(applied(XNNPACK))) == 2
    assert count(traces, lambda: edge_program(nullcontext())) == 6, (
        "each also once by a pass of PyTorch's"
    )


def count(traces: list[ExportPass], action: Callable[[], object]) -> int:
    traces.clear()
    action()
    return len(traces)
