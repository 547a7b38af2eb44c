"""Operators that write caches reach the compiler as such, and it writes the caches where they are.

The compiler itself needs a GPU; what it makes of a graph before it writes code does not.
"""

from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

if not find_spec("triton"):
    pytest.skip("needs triton to import", allow_module_level=True)

from torch._inductor import compile_fx

from eagle_aot.export.lowering.in_place import writes_unwrapped, written_in_place
from eagle_aot.triton_kernels.copy_rows import copy_rows
from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk
from support.kernels.h100 import analyse_for_h100
from support.kernels.norm_rope_cases import Case

CASE = Case(1, 8, 4, 2, 64)
KERNEL = torch.ops.higher_order.triton_kernel_wrapper_mutation


class Layer(nn.Module):
    """Stores rows, then attends to them."""

    def __init__(self) -> None:
        super().__init__()
        arguments = CASE.arguments()
        self.register_buffer("k", arguments[5])
        self.register_buffer("v", arguments[6])
        self.rest = arguments[-3:]

    def forward(self, parts: Tensor, cos: Tensor, sin: Tensor, own: Tensor, tail: Tensor) -> Tensor:
        assert isinstance(self.k, Tensor) and isinstance(self.v, Tensor)
        weights = None, None
        q = norm_rope_store(parts, cos, sin, *weights, self.k, self.v, own, None, None, *self.rest)
        caches = self.k.unsqueeze(1), self.v.unsqueeze(1)
        return sdpa_splitk(q, *caches, own.unsqueeze(0), own[:1] * 0, tail, 1.0, 0, 0)


class Copied(Layer):
    """Copies rows within its buffers."""

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        assert isinstance(self.k, Tensor) and isinstance(self.v, Tensor)
        copy_rows(self.k, self.v, sources, targets)
        return targets[-1:] + 1


def inputs() -> tuple[Tensor, ...]:
    parts, cos, sin, *_ = arguments = CASE.arguments()
    own = arguments[7]
    return parts, cos, sin, own, (own.view(1, -1, 1) + torch.arange(-15, 1)).clamp(min=-1)


@pytest.fixture
def program() -> ExportedProgram:
    """As lowering leaves it: functions instead of writes."""
    rows = Dim("rows", min=2, max=16)
    shapes = {2: rows}, {1: rows}, {1: rows}, {0: rows}, {1: rows}
    traced = torch.export.export(Layer(), inputs(), dynamic_shapes=shapes, strict=False)
    return traced.run_decompositions({}, decompose_custom_triton_ops=False)


def test_a_wrapped_operator_stands_by_itself_again(program: ExportedProgram) -> None:
    """And computes the same, in the buffers themselves."""
    wrapped, unwrapped = program.module(), written_in_place(deepcopy(program).module())
    assert torch.ops.higher_order.auto_functionalized_v2 in targets(wrapped)
    assert {*targets(unwrapped)}.isdisjoint(
        (torch.ops.higher_order.auto_functionalized_v2, torch.ops.aten.copy_.default)
    )
    assert targets(unwrapped).count(torch.ops.eagle_aot.norm_rope_store.default) == 1
    assert torch.equal(wrapped(*inputs()), unwrapped(*inputs()))
    for name, before in (("k", 5), ("v", 6)):
        buffers = wrapped.get_buffer(name), unwrapped.get_buffer(name)
        assert torch.equal(*buffers) and not torch.equal(buffers[0], CASE.arguments()[before])


def targets(module: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def copying() -> ExportedProgram:
    rows = Dim("rows", min=2, max=16)
    places = torch.arange(4), torch.arange(4, 8)
    shapes = {0: rows}, {0: rows}
    traced = torch.export.export(Copied(), places, dynamic_shapes=shapes, strict=False)
    return traced.run_decompositions({}, decompose_custom_triton_ops=False)


def last_graph(program: ExportedProgram, monkeypatch: pytest.MonkeyPatch) -> torch.fx.Graph:
    """What the compiler is to write code for."""
    analyse_for_h100(monkeypatch)
    graphs: list[torch.fx.Graph] = []
    passes = compile_fx.post_grad_passes

    def last_passes(module: torch.fx.GraphModule, inference: bool) -> None:
        passes(module, inference)
        graphs.append(module.graph)
        raise InterruptedError("the rest needs a GPU")

    monkeypatch.setattr(compile_fx, "post_grad_passes", last_passes)
    fake = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.name in program.graph_signature.user_inputs
    ]
    with pytest.raises(Exception, match="needs a GPU"), torch.no_grad(), writes_unwrapped():
        torch._inductor.aot_compile(program.module(), tuple(fake))
    (graph,) = graphs
    return graph


@pytest.mark.parametrize("names", [("k_cache_ptr", "v_cache_ptr"), ("k_ptr", "v_ptr")])
def test_the_compiler_clones_no_cache(
    names: tuple[str, str], program: ExportedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels write the buffers themselves, and nothing is copied back."""
    stores = "k_cache_ptr" in names
    graph = last_graph(program if stores else copying(), monkeypatch)
    given = [node.kwargs["kwargs"] for node in graph.nodes if node.target is KERNEL]
    (written,) = [by_name for by_name in given if ("slots_ptr" in by_name) == stores]
    caches = [written[name] for name in names]
    assert [cache.op for cache in caches] == ["get_attr", "get_attr"]
    copies = torch.ops.aten.clone.default, torch.ops.aten.copy_.default
    assert not [n for n in graph.nodes if n.target in copies and set(n.args) & set(caches)]
