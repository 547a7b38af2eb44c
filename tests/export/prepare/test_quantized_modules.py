"""Codes of weights against their definition and against torchao's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine

from eagle_aot.export.prepare.quantized_modules import GROUP, int4_by_groups, int8_by_rows

SHAPES = st.tuples(st.integers(1, 300), st.integers(1, 4).map(lambda groups: GROUP * groups))
SEEDS = st.integers(0, 2**32 - 1)


def weight(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """Rows of very different sizes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.randint(-3, 3, (shape[0], 1), generator=generator)
    zero = torch.rand(shape[0], 1, generator=generator) < 0.1
    return torch.randn(shape, generator=generator) * sizes * ~zero


@settings(deadline=None, max_examples=25)
@given(shape=SHAPES, seed=SEEDS)
def test_int8_is_off_by_half_a_step_at_most(shape: tuple[int, int], seed: int) -> None:
    dense = weight(shape, seed)
    found = int8_by_rows(dense)
    steps, _ = choose_qparams_affine(
        dense, MappingType.SYMMETRIC, (1, shape[1]), torch.int8, -127, 127
    )
    filled = dense.abs().amax(1) > 0
    torch.testing.assert_close(found.scale[filled, 0], steps[filled])
    assert ((found.dense() - dense).abs() <= found.scale * 0.5001).all()
    assert found.group_size == shape[1]


@settings(deadline=None, max_examples=25)
@given(shape=SHAPES, seed=SEEDS)
def test_int4_is_no_worse_than_rounding(shape: tuple[int, int], seed: int) -> None:
    """With a scale that just holds the largest weight, as bfloat16 has it."""
    dense = weight(shape, seed)
    found = int4_by_groups(dense)
    assert found.codes.dtype == torch.int8
    assert -8 <= int(found.codes.min()) <= int(found.codes.max()) <= 7
    assert torch.equal(found.scale, found.scale.to(torch.bfloat16).float())
    assert (found.scale > torch.finfo(torch.float32).tiny).all()
    groups = dense.unflatten(1, (-1, GROUP))
    holding = torch.maximum(groups.amax(-1) / 7, groups.amin(-1) / -8).clamp(min=1e-30)
    scale = holding.to(torch.bfloat16).float().unsqueeze(-1)
    rounded = (groups / scale).round().clamp(-8, 7) * scale
    worst = (rounded - groups).square().sum(-1)
    error = (found.dense().unflatten(1, (-1, GROUP)) - groups).square().sum(-1)
    assert (error <= worst * 1.0001).all()


@pytest.mark.parametrize("quantise", [int8_by_rows, int4_by_groups])
def test_zeros_stay_zeros(quantise: object) -> None:
    assert callable(quantise)
    found = quantise(torch.zeros(3, GROUP))
    assert not found.dense().any()
    assert found.scale.isfinite().all()
