"""Keys and values in INT8: what is stored of them, and what is read."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.triton_kernels.kv_int8 import (
    SCALE_BYTES,
    are_readable,
    dequantize_entries,
    head_dim_of,
    quantize_entries,
    read_entries,
)

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@SETTINGS
@given(
    head_dim=st.sampled_from([16, 64, 256]),
    exponent=st.integers(-100, 100),
    spread=st.floats(0, 4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_an_element_is_half_a_step_off_at_most(
    head_dim: int, exponent: int, spread: float, dtype: torch.dtype, seed: int
) -> None:
    """A step is a 127th of the largest element of the entry."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 5, head_dim, generator=generator)
    x = (x * (spread * x.abs()).exp() * 2.0**exponent).to(dtype)
    entries = quantize_entries(x)
    assert entries.shape == (3, 5, head_dim + SCALE_BYTES) and entries.dtype == torch.int8
    assert head_dim_of(entries) == head_dim
    steps = x.double().abs().amax(-1, keepdim=True) / 127
    error = (read_entries(entries, torch.float64) - x.double()).abs()
    assert (error <= 0.5001 * steps).all()
    again = quantize_entries(read_entries(entries, torch.float32))
    assert torch.equal(again[..., :head_dim], entries[..., :head_dim])


def test_the_operators_are_what_programs_may_contain() -> None:
    x, checks = torch.randn(3, 32), ("test_schema", "test_faketensor")
    torch.library.opcheck(quantize_entries, (x,), test_utils=checks)
    entries = quantize_entries(x), torch.bfloat16
    torch.library.opcheck(dequantize_entries, entries, test_utils=checks)


def test_zeros_are_zeros() -> None:
    assert not read_entries(quantize_entries(torch.zeros(2, 16)), torch.float32).any()
    assert not read_entries(torch.zeros(2, 16 + SCALE_BYTES, dtype=torch.int8), torch.float32).any()


def test_entries_of_other_dtypes_are_read_as_they_are() -> None:
    x = torch.randn(2, 16)
    assert read_entries(x, torch.float32) is x
    assert torch.equal(read_entries(x, torch.bfloat16), x.bfloat16())
    assert head_dim_of(x) == 16


@pytest.mark.parametrize(("dtype", "readable"), [
    (torch.bfloat16, True), (torch.float16, True), (torch.float32, False),
])  # fmt: skip
def test_queries_of_16_bits_read_int8(dtype: torch.dtype, readable: bool) -> None:
    assert are_readable(torch.empty(1, 32, dtype=torch.int8), dtype) == readable
    assert are_readable(torch.empty(1, 32, dtype=dtype), dtype)


def test_infinity_is_not_read_as_a_number() -> None:
    x = torch.tensor([[1.0] * 15 + [math.inf]])
    assert not read_entries(quantize_entries(x), torch.float32).isfinite().all()
