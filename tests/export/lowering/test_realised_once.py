"""What layers share is computed once.

The compiler itself needs a GPU; what it plans to compute does not.
"""

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

if not find_spec("triton"):
    pytest.skip("needs triton to import", allow_module_level=True)

from torch._inductor import ir, scheduler

from eagle_aot.export.lowering.in_place import writes_unwrapped
from eagle_aot.export.lowering.kernel_mutations import mutations_memoised
from eagle_aot.export.lowering.realised_once import inputs_realised_once
from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store
from support.kernels.h100 import analyse_for_h100
from support.kernels.norm_rope_cases import Case

CASE = Case(1, 8, 4, 2, 64)
LAYERS = 3


class Layers(nn.Module):
    """Store rows in their caches at slots, and by angles, that follow from their positions."""

    def __init__(self) -> None:
        super().__init__()
        for layer in range(LAYERS):
            *_, k, v = CASE.arguments()[:7]
            self.register_buffer(f"k{layer}", k)
            self.register_buffer(f"v{layer}", v)
        self.rest = CASE.arguments()[-3:]

    def forward(self, parts: Tensor, positions: Tensor) -> list[Tensor]:
        own = torch.where(positions < 0, 15, positions % 15).flatten()
        angles = positions[..., None, None] * torch.arange(1, 33) / 8
        cos, sin = (torch.cat((x, x), dim=-1) for x in (angles.cos(), angles.sin()))
        return [
            norm_rope_store(parts, cos, sin, None, None, self.get_buffer(f"k{layer}"),
                            self.get_buffer(f"v{layer}"), own, None, None, *self.rest)
            for layer in range(LAYERS)
        ]  # fmt: skip


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    rows, parts = Dim("rows", min=2, max=16), CASE.arguments()[0]
    positions = torch.arange(parts.shape[2]).unsqueeze(0)
    shapes = {2: rows}, {1: rows}
    traced = torch.export.export(Layers(), (parts, positions), dynamic_shapes=shapes, strict=False)
    return traced.run_decompositions({}, decompose_custom_triton_ops=False)


def test_what_calls_share_is_computed_once(program: ExportedProgram) -> None:
    """Slots, cosines and sines, for which the compiler would launch kernels of its own."""
    plans: list[list[object]] = []

    def plan(_: object, operations: list[object]) -> None:
        plans.append(operations)
        raise InterruptedError("the rest needs a GPU")

    names = program.graph_signature.user_inputs
    fake = [node.meta["val"] for node in program.graph.nodes if node.name in names]
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        pytest.raises(Exception, match="needs a GPU"),
        torch.no_grad(),
        mutations_memoised(),
        writes_unwrapped(),
        inputs_realised_once(),
    ):
        analyse_for_h100(monkeypatch)
        monkeypatch.setattr(scheduler.Scheduler, "__init__", plan)
        torch._inductor.aot_compile(program.module(), tuple(fake))
    (operations,) = plans
    calls = [one for one in operations if isinstance(one, ir.UserDefinedTritonKernel)]
    buffers = [one for one in operations if isinstance(one, ir.ComputedBuffer)]
    computed = [one for one in buffers if any(size != 0 for size in one.data.ranges)]
    assert (len(calls), len(computed)) == (LAYERS, 3)
