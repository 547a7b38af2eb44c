"""The input of the CUDA backend's compiler, and Inductor's graph before it writes code.

The compiler itself needs a GPU.
"""

import gc
import weakref
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_module
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule

from eagle_aot.artifact import TARGET_VERIFY
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.int4 import PackedInt4Linear
from eagle_aot.targets.int4.weight import random_int4

if not find_spec("triton"):
    pytest.skip("needs triton to import", allow_module_level=True)

from executorch.backends.cuda.cuda_backend import CudaBackend
from torch._inductor import compile_fx, config
from torch._inductor.fx_passes.post_grad import post_grad_passes

from eagle_aot.export.lowering.cuda import WriteInPlace, compile_specs, lower
from eagle_aot.export.lowering.patches import forget_last_trace
from eagle_aot.triton_kernels.copy_rows import copy_rows
from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk
from support.kernels.compiled import analyse_for_h100
from support.kernels.norm_rope_cases import Case


class CompilerReachedError(Exception):
    """Raised in the compiler's place."""


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> dict[str, ExportedProgram]:
    """The programs by method that the compiler is given; lowering stops there."""
    reached: dict[str, ExportedProgram] = {}

    def compile_nothing(programs: dict[str, list[ExportedProgram]], specs: Any) -> None:
        reached.update({name: program for name, (program,) in programs.items()})
        raise CompilerReachedError

    monkeypatch.setattr(CudaBackend, "preprocess_multimethod", compile_nothing)
    return reached


def stop(*_: object) -> None:
    raise CompilerReachedError


class Method(nn.Module):
    """A packed product, a small table and a cache."""

    cos: Tensor
    kv_cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = PackedInt4Linear(random_int4(64, 64, 32, torch.bfloat16), 132)
        self.register_buffer("cos", torch.ones(64, dtype=torch.bfloat16), persistent=False)
        self.register_buffer("kv_cache", torch.zeros(16, 64, dtype=torch.bfloat16))

    def forward(self, x: Tensor, input_pos: Tensor) -> Tensor:
        product = self.linear(x) * self.cos
        self.kv_cache.index_copy_(0, input_pos, product[0])
        return product + self.kv_cache.sum(0)


def test_packed_weights_reach_the_compiler_as_parameters(
    reached: dict[str, ExportedProgram],
) -> None:
    """In the model's own memory, with their type, and so they move to the device."""
    method = Method()
    x, input_pos = torch.ones(1, 4, 64, dtype=torch.bfloat16), torch.arange(4)
    traced = torch.export.export(method, (x, input_pos), strict=True)
    with pytest.raises(CompilerReachedError):
        lower({TARGET_VERIFY: traced}, {}, lambda stage: None)
    program = reached[TARGET_VERIFY]
    signature, tensors = program.graph_signature, program.state_dict | program.constants
    assert set(signature.parameters) == {"linear.codes", "linear.scales"}
    assert set(signature.buffers) == {"cos", "kv_cache"}
    for name in signature.parameters:
        assert tensors[name].data_ptr() == method.get_parameter(name).data_ptr()
    CudaBackend.move_program_to_device(program, "cpu", compile_specs(TARGET_VERIFY))
    codes = program.state_dict["linear.codes"]
    assert isinstance(codes, nn.Parameter) and not codes.requires_grad
    assert torch.equal(codes, method.linear.codes) and codes.dtype == torch.int16


class Written(nn.Module):
    """A cache that is written without an operator."""

    def __init__(self, by_token: bool) -> None:
        super().__init__()
        spec = CacheSpec(64, torch.bfloat16, 2, by_token=by_token, on_host=True)
        self.kv_cache = spec.cache(3, 16)

    def forward(self, slots: Tensor, entries: Tensor) -> Tensor:
        cache = self.kv_cache
        cache.write(cache.k, slots, entries)
        return cache.by_sequence(cache.k)[:, 0].sum(1)


def written(by_token: bool) -> ExportedProgram:
    example = torch.arange(5), torch.zeros(3, 5, 16, dtype=torch.bfloat16)
    return torch.export.export(Written(by_token), example, strict=False)


@pytest.mark.parametrize("by_token", [False, True])
def test_a_cache_reaches_the_compiler_as_it_lies_in_memory(
    by_token: bool, reached: dict[str, ExportedProgram]
) -> None:
    with pytest.raises(CompilerReachedError):
        lower({TARGET_VERIFY: written(by_token)}, {}, lambda stage: None)
    program = reached[TARGET_VERIFY]
    CudaBackend.move_program_to_device(program, "cpu", compile_specs(TARGET_VERIFY))
    strides = Written(by_token).kv_cache.k.stride()
    assert program.constants["kv_cache.k"].stride() == strides
    (held,) = (n for n in program.graph.nodes if n.name == "b_kv_cache_k")
    assert held.meta["val"].stride() == strides


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (2 * x,)


def test_each_method_is_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Scaled(), (torch.ones(4),))
    stages: list[str] = []
    monkeypatch.setattr(CudaBackend, "move_program_to_device", stop)
    for method in ("prefill", "draft_decode"):
        with pytest.raises(CompilerReachedError):
            lower({method: program}, {}, stages.append)
    with pytest.raises(CompilerReachedError):
        CudaBackend.preprocess(program, compile_specs("later"))
    assert stages == ["lower prefill", "lower draft_decode"]


def test_a_compiled_method_is_released() -> None:
    graph, _ = aot_export_module(Scaled(), (torch.ones(4),), trace_joint=False)
    assert isinstance(graph, GraphModule)
    graph.meta["clone"] = clone = torch.ones(4)
    reference = weakref.ref(clone)
    del graph, clone
    gc.collect()
    forget_last_trace()
    gc.collect()
    assert reference() is None


CASE = Case(1, 8, 4, 2, 64)
KERNEL = torch.ops.higher_order.triton_kernel_wrapper_mutation


class Layer(nn.Module):
    """Stores rows, then attends to them."""

    def __init__(self, case: Case = CASE) -> None:
        super().__init__()
        arguments = case.arguments()
        self.register_buffer("k", arguments[5])
        self.register_buffer("v", arguments[6])
        self.rest = arguments[-4:]

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
    return program_of(CASE)


def program_of(case: Case) -> ExportedProgram:
    """As lowering leaves it: functions instead of writes."""
    rows = Dim("rows", min=2, max=16)
    shapes = {2: rows}, {1: rows}, {1: rows}, {0: rows}, {1: rows}
    traced = torch.export.export(Layer(case), inputs(), dynamic_shapes=shapes, strict=False)
    return traced.run_decompositions({}, decompose_custom_triton_ops=False)


def unwrapped(program: ExportedProgram) -> GraphModule:
    module = deepcopy(program).module()
    WriteInPlace()(module.graph)
    module.recompile()
    return module


def test_operators_that_write_in_place_are_unwrapped(program: ExportedProgram) -> None:
    """The graph computes the same, in the buffers themselves."""
    wrapped, in_place = program.module(), unwrapped(program)
    assert torch.ops.higher_order.auto_functionalized_v2 in targets(wrapped)
    assert {*targets(in_place)}.isdisjoint(
        (torch.ops.higher_order.auto_functionalized_v2, torch.ops.aten.copy_.default)
    )
    assert targets(in_place).count(torch.ops.eagle_aot.norm_rope_store.default) == 1
    assert torch.equal(wrapped(*inputs()), in_place(*inputs()))
    for name, before in (("k", 5), ("v", 6)):
        buffers = wrapped.get_buffer(name), in_place.get_buffer(name)
        assert torch.equal(*buffers) and not torch.equal(buffers[0], CASE.arguments()[before])


def targets(module: GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def copying() -> ExportedProgram:
    rows = Dim("rows", min=2, max=16)
    sources_and_targets = torch.arange(4), torch.arange(4, 8)
    shapes = {0: rows}, {0: rows}
    traced = torch.export.export(Copied(), sources_and_targets, dynamic_shapes=shapes, strict=False)
    return traced.run_decompositions({}, decompose_custom_triton_ops=False)


def last_graph(program: ExportedProgram, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """Return the graph that the compiler writes code for."""
    analyse_for_h100(monkeypatch)
    graphs: list[Graph] = []

    def last_passes(module: GraphModule, inference: bool) -> None:
        post_grad_passes(module, inference)
        graphs.append(module.graph)
        raise InterruptedError("the rest needs a GPU")

    monkeypatch.setattr(compile_fx, "post_grad_passes", last_passes)
    fake = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.name in program.graph_signature.user_inputs
    ]
    in_place = config.patch({"pre_grad_custom_pass": WriteInPlace()})
    with pytest.raises(Exception, match="needs a GPU"), torch.no_grad(), in_place:
        torch._inductor.aot_compile(program.module(), tuple(fake))
    (graph,) = graphs
    return graph


@pytest.mark.parametrize("make", [
    partial(program_of, CASE), partial(program_of, replace(CASE, int8=True)), copying,
    partial(program_of, replace(CASE, by_token=True)),
])  # fmt: skip
def test_the_compiler_clones_no_cache(
    make: Callable[[], ExportedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels write the buffers themselves, and nothing is copied back."""
    stores = make is not copying
    names = ("k_cache_ptr", "v_cache_ptr") if stores else ("k_ptr", "v_ptr")
    graph = last_graph(make(), monkeypatch)
    given = [node.kwargs["kwargs"] for node in graph.nodes if node.target is KERNEL]
    (written,) = [by_name for by_name in given if ("slots_ptr" in by_name) == stores]
    caches = [written[name] for name in names]
    assert [cache.op for cache in caches] == ["get_attr", "get_attr"]
    copies = torch.ops.aten.clone.default, torch.ops.aten.copy_.default
    assert not [n for n in graph.nodes if n.target in copies and set(n.args) & set(caches)]


@pytest.mark.parametrize("by_token", [False, True])
def test_a_head_without_an_operator_writes_its_cache_in_place(
    by_token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = last_graph(written(by_token).run_decompositions(), monkeypatch)
    called = {str(node.target) for node in graph.nodes}
    assert "aten.index_put_.default" in called
    assert not {"aten.clone.default", "aten.copy_.default", "aten.index_put.default"} & called
