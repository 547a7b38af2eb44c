"""Experts in the form for GPU kernels: what they compute, and which are refused."""

import pytest
import torch
from torch import nn

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.targets.decoder.experts import (
    ExpertChoice,
    Experts,
    ExpertsConfig,
    Int4ExpertLinears,
    random_experts,
)
from eagle_aot.targets.decoder.packed_experts import PackedExperts
from eagle_aot.targets.int4.weight import Int4Format


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("returns_parts", [True, False])
def test_packed_experts_mix_as_their_weights_in_float64(digits: int, returns_parts: bool) -> None:
    torch.manual_seed(0)
    config = ExpertsConfig(num_experts=6, top_k=2, intermediate_size=32)
    experts, int4 = Experts(config, 64, "silu", torch.bfloat16), Int4Format(32, digits)
    experts.gate_up_proj = random_experts((6, 64, 64), int4, torch.bfloat16)
    experts.down_proj = random_experts((6, 64, 32), int4, torch.bfloat16)
    rows, scores = torch.randn(9, 64).bfloat16(), torch.randn(9, 6)
    weights, ids = ExpertChoice(config)(scores)
    packed = PackedExperts(experts)
    packed.returns_parts = returns_parts
    mixed = packed(rows, weights, ids)
    mixed = mixed.sum(0) if returns_parts else mixed
    gate_up, down = experts.gate_up_proj, experts.down_proj
    assert isinstance(gate_up, Int4ExpertLinears) and isinstance(down, Int4ExpertLinears)
    wide = gate_up.dense().weight.double(), down.dense().weight.double()
    for row, x in enumerate(rows.double()):
        gate, up = (wide[0][ids[row]] @ x).chunk(2, 1)
        outputs = (wide[1][ids[row]] @ (nn.functional.silu(gate) * up).unsqueeze(-1)).squeeze(-1)
        exact = (outputs * weights[row].double().unsqueeze(-1)).sum(0)
        assert (mixed[row].double() - exact).norm() < 0.02 * exact.norm()


def test_the_operator_of_a_choice_chooses_as_the_module_does() -> None:
    config = ExpertsConfig(num_experts=6, top_k=2, intermediate_size=32)
    choice, scores, scale = ExpertChoice(config), torch.randn(9, 6), torch.rand(6)
    expected = choice(scores, scale)
    choice.uses_operator = True
    assert all(map(torch.equal, choice(scores, scale), expected))


@pytest.mark.parametrize(("inner", "int4", "message"), [
    (32, None, "model.experts: dense experts, .* add --quantize int4-g32, or use --backend"),
    (36, Int4Format(12), "groups of 12 columns, the GPU kernels read multiples of 32"),
    (4, Int4Format(32), "4 rows of a gate, the GPU kernels read multiples of 8"),
])  # fmt: skip
def test_experts_that_no_kernel_reads_are_not_packed(
    inner: int, int4: Int4Format | None, message: str
) -> None:
    config = ExpertsConfig(num_experts=3, top_k=1, intermediate_size=inner)
    experts = Experts(config, 64, "silu", torch.bfloat16)
    experts.gate_up_proj = random_experts((3, 2 * inner, 64), int4, torch.bfloat16)
    down = Int4Format(32) if inner == 4 else int4
    experts.down_proj = random_experts((3, 64, max(inner, 32)), down, torch.bfloat16)
    with pytest.raises(UnsupportedError, match=message):
        pack_int4(nn.ModuleDict({"model": nn.ModuleDict({"experts": experts})}), 1)
