"""What reaches the CUDA backend's compiler, which itself needs a GPU."""

import gc
import weakref
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_module
from torch.export import ExportedProgram

from eagle_aot.artifact import TARGET_VERIFY
from eagle_aot.targets.int4 import PackedInt4Linear
from eagle_aot.targets.int4.weight import random_int4

if not find_spec("triton"):
    pytest.skip("needs triton to import", allow_module_level=True)

from executorch.backends.cuda.cuda_backend import CudaBackend

from eagle_aot.export.lowering.cuda import compile_specs, forget_last_trace, lower


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
    signature, held = program.graph_signature, program.state_dict | program.constants
    assert set(signature.parameters) == {"linear.codes", "linear.scales"}
    assert set(signature.buffers) == {"cos", "kv_cache"}
    for name in signature.parameters:
        assert held[name].data_ptr() == method.get_parameter(name).data_ptr()
    CudaBackend.move_program_to_device(program, "cpu", compile_specs(TARGET_VERIFY))
    codes = program.state_dict["linear.codes"]
    assert isinstance(codes, nn.Parameter) and not codes.requires_grad
    assert torch.equal(codes, method.linear.codes) and codes.dtype == torch.int16


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (2 * x,)


def test_a_compiled_method_is_let_go() -> None:
    graph, _ = aot_export_module(Scaled(), (torch.ones(4),), trace_joint=False)
    graph.meta["clone"] = clone = torch.ones(4)
    held = weakref.ref(clone)
    del graph, clone
    gc.collect()
    forget_last_trace()
    gc.collect()
    assert held() is None
