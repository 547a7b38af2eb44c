"""Linears that share an input, separate and packed as one."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eagle_aot.targets.decoder.layer import GatedMLP, SharedInput
from eagle_aot.targets.int4 import Int4Linear, PackedGatedInt4, PackedProjections
from eagle_aot.targets.int4.weight import random_int4

WIDTH = 256


class TwoOfThree(SharedInput):
    """Three linears of one input; one of them may be missing."""

    shared_linears = ("a", "b", "c")

    def __init__(self, a: nn.Module, b: nn.Module, c: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b, self.c = a, b, c


def dense(rows: int, columns: int = WIDTH) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16).requires_grad_(False)


def int4(rows: int, columns: int = WIDTH, group: int = 32) -> Int4Linear:
    return Int4Linear(random_int4(rows, columns, group, torch.bfloat16), torch.bfloat16)


@pytest.fixture
def x() -> Tensor:
    """Return the input bfloat16 [1, 5, WIDTH]."""
    torch.manual_seed(0)
    return torch.randn(1, 5, WIDTH, dtype=torch.bfloat16)


def test_linears_of_one_input_are_packed_as_one(x: Tensor) -> None:
    module = TwoOfThree(int4(40), int4(24))
    apart = module.project(x)
    module.fuse_linears(132)
    assert isinstance(module.fused, PackedProjections)
    assert module.a is module.b is module.c is None
    assert set(module.state_dict()) == {"fused.codes", "fused.scales"}
    for output, expected in zip(module.project(x), apart, strict=True):
        assert torch.equal(output, expected)
    fused = module.fused
    module.fuse_linears(132)  # nothing is left to pack
    assert module.fused is fused


@pytest.mark.parametrize("other", [dense(24), int4(24, group=64)])
def test_linears_that_do_not_fit_together_stay_separate(other: nn.Module, x: Tensor) -> None:
    module = TwoOfThree(int4(40), int4(24), other)
    names = set(module.state_dict())
    module.fuse_linears(132)
    assert module.fused is None and set(module.state_dict()) == names
    assert [y.shape[-1] for y in module.project(x)] == [40, 24, 24]


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
def test_a_gated_mlp_computes_the_same_after_packing(activation: str, x: Tensor) -> None:
    mlp = GatedMLP(int4(64), int4(64), dense(WIDTH, 64), activation)
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    acted = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    expected = mlp.down_proj(acted * up)
    assert torch.equal(mlp(x), expected)
    mlp.fuse_linears(132)
    assert isinstance(mlp.fused, PackedGatedInt4) and mlp.gate_proj is None
    assert torch.equal(mlp(x), expected)


@pytest.mark.parametrize("gate", [int4(60), int4(60, group=64), dense(60)])
def test_a_gated_mlp_of_unsupported_linears_is_not_packed(gate: nn.Module, x: Tensor) -> None:
    """60 rows are not a multiple of `GATED_ROWS`."""
    mlp = GatedMLP(gate, int4(60), dense(WIDTH, 60), "silu")
    expected = mlp(x)
    mlp.fuse_linears(132)
    assert mlp.fused is None and torch.equal(mlp(x), expected)
