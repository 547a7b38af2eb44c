"""The INT4 linear: its arithmetic against float64, and its dispatch by row count."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm import (
    api,
    dequantise_int4,
    int4_linear,
    matvec_max_m,
    set_matvec_max_m,
)

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@pytest.fixture(autouse=True)
def restored_limit() -> Iterator[None]:
    before = matvec_max_m()
    yield
    set_matvec_max_m(before)


def random_weight(
    rows: int, groups: int, group: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes 0..15 [N, K], the same codes packed, scale and (fractional) zero point [K / g, N]."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, groups * group), generator=generator)
    qdata = (codes[:, 0::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    scale = torch.rand(groups, rows, generator=generator) + 0.1
    zero_point = 16 * torch.rand(groups, rows, generator=generator)
    return codes, qdata, scale, zero_point


def dense_float64(codes: Tensor, scale: Tensor, zero_point: Tensor, group: int) -> Tensor:
    """One element at a time, straight from the definition."""
    weight = torch.empty(codes.shape, dtype=torch.float64)
    for n in range(codes.shape[0]):
        for k in range(codes.shape[1]):
            j = k // group
            weight[n, k] = (int(codes[n, k]) - float(zero_point[j, n])) * float(scale[j, n])
    return weight


@SETTINGS
@given(
    rows=st.integers(1, 9),
    groups=st.integers(1, 4),
    group=st.sampled_from([2, 4, 16, 32]),
    m=st.integers(1, 12),
    seed=st.integers(0, 5),
)
def test_product_and_weight_match_float64(
    rows: int, groups: int, group: int, m: int, seed: int
) -> None:
    codes, qdata, scale, zero_point = random_weight(rows, groups, group, seed)
    expected = dense_float64(codes, scale, zero_point, group)
    dense = dequantise_int4(qdata, scale, zero_point)
    torch.testing.assert_close(dense.double(), expected, rtol=1e-6, atol=1e-6)
    x = torch.randn(1, m, groups * group, generator=torch.Generator().manual_seed(seed))
    product = int4_linear(x, qdata, scale, zero_point)
    assert product.shape == (1, m, rows) and product.dtype == x.dtype
    torch.testing.assert_close(product.double(), x.double() @ expected.T, rtol=1e-5, atol=1e-4)


def test_even_columns_are_in_the_low_nibble_and_group_boundaries_are_exact() -> None:
    qdata = torch.tensor([[0x21, 0x43]], dtype=torch.uint8)
    scale, zero = torch.tensor([[1.0], [10.0]]), torch.tensor([[0.0], [1.0]])
    assert dequantise_int4(qdata, scale, zero).tolist() == [[1.0, 2.0, 20.0, 30.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weight_takes_the_scales_dtype_and_the_product_the_inputs(dtype: torch.dtype) -> None:
    _, qdata, scale, zero_point = random_weight(4, 2, 8)
    scale, zero_point = scale.to(dtype), zero_point.to(dtype)
    assert dequantise_int4(qdata, scale, zero_point).dtype == dtype
    x = torch.randn(1, 3, 16).bfloat16()
    assert int4_linear(x, qdata, scale, zero_point).dtype == torch.bfloat16


@pytest.mark.parametrize("limit", [1, 4, 8])
def test_up_to_the_limit_rows_take_the_small_path(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, qdata, scale, zero_point = random_weight(4, 2, 8)
    taken: list[int] = []

    def small(x: Tensor, *weight: Tensor) -> Tensor:
        taken.append(x.shape[-2])
        return torch.full((1, x.shape[-2], 4), 7.0)

    monkeypatch.setattr(api, "int4_small_m", small)
    set_matvec_max_m(limit)
    for m in range(1, 13):
        product = int4_linear(torch.zeros(1, m, 16), qdata, scale, zero_point)
        assert bool((product == 7.0).all()) == (m <= limit)
    assert taken == list(range(1, limit + 1))


def test_both_paths_compute_the_same() -> None:
    _, qdata, scale, zero_point = random_weight(6, 2, 16)
    x = torch.randn(1, 5, 32)
    set_matvec_max_m(8)
    small = int4_linear(x, qdata, scale, zero_point)
    set_matvec_max_m(1)
    assert torch.equal(int4_linear(x, qdata, scale, zero_point), small)


@pytest.mark.parametrize("rows", [-1, 0, 9, 100])
def test_a_limit_that_no_kernel_serves_is_refused(rows: int) -> None:
    before = set_matvec_max_m(5)
    with pytest.raises(ValueError, match=r"MATVEC_MAX_M must be in \[1, 8\]"):
        set_matvec_max_m(rows)
    assert matvec_max_m() == 5 and before == 4
