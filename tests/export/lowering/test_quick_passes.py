"""ExecuTorch's lowering with fewer passes: graphs in order, and the same bits from the program."""

import gc
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.runtime import Runtime
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, exported_program
from torch.fx import Graph, GraphModule, Node

from eagle_aot.export.lowering.quick_passes import (
    COLLECT_EVERY,
    quick_passes,
    rare_collections,
    sort_in_place,
)
from eagle_aot.export.lowering.xnnpack import LinearPartitioner
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
def test_a_shuffled_graph_is_put_in_order(size: int, seed: int) -> None:
    module, rng = random_graph(size, seed), random.Random(seed)
    expected = module(torch.tensor(0.5))
    first, *inner, last = module.graph.nodes
    rng.shuffle(inner)
    place = first
    for node in inner:
        place.append(node)
        place = node
    sort_in_place(module)
    found = list(module.graph.nodes)
    assert {*found} == {first, *inner, last}
    module.graph.lint()
    module.recompile()
    assert torch.equal(module(torch.tensor(0.5)), expected)


def test_a_graph_that_is_in_order_stays() -> None:
    module = random_graph(20, 0)
    before: list[Node] = list(module.graph.nodes)
    sort_in_place(module)
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
def test_the_program_computes_the_same(linear: Callable[[], nn.Module]) -> None:
    block, x = Block(linear()), torch.randn(1, 5, 32)
    expected = run(lowered(block, nullcontext()), x)
    assert torch.equal(run(lowered(block, quick_passes()), x), expected)
    assert expected.norm() > 1


def test_a_program_is_decomposed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decompose, calls = exported_program._decompose_exported_program, list[object]()

    def counted(program: ExportedProgram, **options: Any) -> ExportedProgram:
        calls.append(program)
        return decompose(program, **options)

    monkeypatch.setattr(exported_program, "_decompose_exported_program", counted)
    block = Block(nn.Linear(32, 32, bias=False))
    lowered(block, quick_passes())
    assert len(calls) == 1
    lowered(block, nullcontext())
    assert len(calls) == 1 + 2, "what it spares"


def test_garbage_is_collected_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), rare_collections():
        assert gc.get_threshold() == COLLECT_EVERY != before
        raise KeyError("a failure")
    assert gc.get_threshold() == before


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
