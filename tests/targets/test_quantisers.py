"""INT8 weights as two INT4 digits: the codes, the error, and the product."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.targets.int4 import (
    Int4Linear,
    Int4Weight,
    PackedGatedInt4,
    PackedInt4Linear,
    PackedProjections,
)
from eagle_aot.targets.int4.quantisers import quantise_int8

SHAPES = {
    "rows": st.integers(1, 70),
    "groups": st.integers(1, 4),
    "scale": st.sampled_from([1e-4, 0.02, 3.0]),
    "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
    "seed": st.integers(0, 2**31),
}


def random_weight(rows: int, groups: int, scale: float, seed: int) -> Tensor:
    """Return a float32 weight [rows, 32 * groups]."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, 32 * groups, generator=generator)


def digits(weight: Int4Weight) -> tuple[np.ndarray, np.ndarray]:
    """Unpack the high and low digits, int64 [N, K] each."""
    pairs = weight.qdata.numpy().astype(np.int64)
    codes = np.stack((pairs & 0xF, pairs >> 4), axis=-1).reshape(len(pairs), -1) - 8
    return codes[:, : codes.shape[1] // 2], codes[:, codes.shape[1] // 2 :]


def scales(weight: Int4Weight) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales of the high and of the low digits, float64 [N, K] each."""
    columns = weight.scale.double().t().repeat_interleave(32, dim=1).numpy()
    return columns[:, : columns.shape[1] // 2], columns[:, columns.shape[1] // 2 :]


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_digits_encode_the_nearest_code(
    rows: int, groups: int, scale: float, dtype: torch.dtype, seed: int
) -> None:
    weight = random_weight(rows, groups, scale, seed)
    quantised = quantise_int8(weight, dtype)
    (high, low), (high_scale, low_scale) = digits(quantised), scales(quantised)
    assert (
        quantised.shape == (rows, 64 * groups)
        and quantised.digits == 2
        and quantised.group_size == 32
    )
    assert bool((quantised.zero_point == 8).all())
    assert np.array_equal(high_scale, 16 * low_scale)
    assert torch.equal(quantised.scale, quantised.scale.to(dtype).float())
    steps = weight.double().numpy() / low_scale
    assert np.abs(16 * high + low - steps).max() <= 0.5 + 1e-4  # the division is in float32
    assert np.abs(16 * high + low).max() <= 119


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_the_int8_error_is_at_most_half_a_step(
    rows: int, groups: int, scale: float, dtype: torch.dtype, seed: int
) -> None:
    weight = random_weight(rows, groups, scale, seed)
    quantised = quantise_int8(weight, dtype)
    step = torch.from_numpy(scales(quantised)[1].copy())
    error = (quantised.dense().double() - weight.double()).abs()
    assert bool((error <= 0.5001 * step).all())
    assert bool((step <= weight.abs().max() / 119 * 1.004).all())  # bfloat16 rounds by 1 / 256


@pytest.mark.parametrize("code", range(-119, 120))
def test_every_code_is_restored(code: int) -> None:
    weight = torch.full((1, 32), 0.5 * code)
    weight[0, 0] = 0.5 * 119
    quantised = quantise_int8(weight, torch.bfloat16)
    high, low = digits(quantised)
    assert (high[0, 1], low[0, 1]) == ((code + 8) // 16, (code + 8) % 16 - 8)
    assert torch.equal(quantised.dense(), weight)


def test_zero_weights_stay_zero() -> None:
    assert not quantise_int8(torch.zeros(3, 64), torch.bfloat16).dense().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_int8_linear_repeats_its_input_per_digit(dtype: torch.dtype) -> None:
    weight, x = random_weight(40, 5, 0.05, 1), torch.randn(1, 7, 160)
    linear = Int4Linear(quantise_int8(weight, dtype), dtype)
    assert (linear.in_features, linear.out_features) == (160, 40)
    expected = F.linear(x, linear.weight.dense().float())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(linear(x.to(dtype)).float(), expected, rtol=0, atol=tolerance)
    dense = linear.dense()
    assert dense.weight.shape == (40, 160)
    torch.testing.assert_close(dense(x.to(dtype)).float(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("multiprocessors", [1, 132])
@pytest.mark.parametrize("rows", [1, 8, 40])
def test_a_packed_int8_linear_computes_the_same(rows: int, multiprocessors: int) -> None:
    """A single linear, projections of one input, and a gated pair."""
    weights = [random_weight(48, 16, 0.05, seed) for seed in range(3)]
    linears = [
        Int4Linear(quantise_int8(weight, torch.bfloat16), torch.bfloat16) for weight in weights
    ]
    apart, x = [linear.weight for linear in linears], torch.randn(1, rows, 512).bfloat16()
    expected = [linear(x) for linear in linears]
    alone = PackedInt4Linear(apart[0], multiprocessors)
    together = PackedProjections(apart, multiprocessors)
    gated = PackedGatedInt4(apart[0], apart[1], "silu", multiprocessors)
    assert alone.in_features == 512 and alone.zeros is None
    assert torch.equal(alone(x), expected[0])
    assert torch.equal(alone.dense().weight, linears[0].dense().weight)
    assert all(torch.equal(a, b) for a, b in zip(together(x), expected, strict=True))
    assert torch.equal(gated(x), F.silu(expected[0]) * expected[1])
