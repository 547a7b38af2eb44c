"""The INT4 linear: its arithmetic against float64, and its dispatch by row count."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm import (
    FULL_IF_GATED,
    api,
    choose_splits,
    dequantise_int4,
    int4_gated_linear,
    int4_linear,
    int4_linear_reference,
    set_matvec_max_m,
)
from support.kernels.int4_cases import Case, float64_gated, tensors

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, database=None)
CASE = Case(80, 384, 32)


@pytest.fixture(autouse=True)
def restored_limit() -> Iterator[None]:
    before = api.MATVEC_MAX_M
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
    return codes, qdata, scale, 16 * torch.rand(groups, rows, generator=generator)


def dense_float64(codes: Tensor, scale: Tensor, zero_point: Tensor, group: int) -> Tensor:
    """Dequantise codes [N, K] element by element, as the format is defined."""
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
    product = int4_linear_reference(x, qdata, scale, zero_point)
    assert product.shape == (1, m, rows) and product.dtype == x.dtype
    torch.testing.assert_close(product.double(), x.double() @ expected.T, rtol=1e-5, atol=1e-4)


def test_dequantised_columns_and_group_boundaries_are_exact() -> None:
    qdata = torch.tensor([[0x21, 0x43]], dtype=torch.uint8)
    scale, zero = torch.tensor([[1.0], [10.0]]), torch.tensor([[0.0], [1.0]])
    assert dequantise_int4(qdata, scale, zero).tolist() == [[1.0, 2.0, 20.0, 30.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_have_the_scales_dtype_and_products_the_inputs(dtype: torch.dtype) -> None:
    _, qdata, scale, zero_point = random_weight(4, 2, 8)
    scale, zero_point = scale.to(dtype), zero_point.to(dtype)
    assert dequantise_int4(qdata, scale, zero_point).dtype == dtype
    x = torch.randn(1, 3, 16).bfloat16()
    assert int4_linear_reference(x, qdata, scale, zero_point).dtype == torch.bfloat16


@pytest.mark.parametrize("limit", [1, 4, 8, 10])
def test_the_row_limit_selects_the_operator(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, taken = CASE.packed(), []

    def recorded(name: str) -> Callable[..., Tensor]:
        original = getattr(api, name)

        def operator(x: Tensor, *arguments: object) -> Tensor:
            taken.append((name, x.shape[-2]))
            return original(x, *arguments)

        return operator

    for name in ("int4_small_m", "int4_large_m"):
        monkeypatch.setattr(api, name, recorded(name))
    set_matvec_max_m(limit)
    for m in range(1, 13):
        int4_linear(CASE.rows(m), *tensors(weight), 1)
        int4_gated_linear(CASE.rows(m), *tensors(weight), 1, "silu")
        assert taken == 2 * [("int4_small_m" if m <= limit else "int4_large_m", m)]
        taken.clear()


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("m", [1, 8, 9])
def test_every_operator_and_split_computes_the_product(m: int, splits: int) -> None:
    set_matvec_max_m(8)
    x = CASE.rows(m)
    product = int4_linear(x, *tensors(CASE.packed()), splits)
    assert torch.equal(product, int4_linear_reference(x, *CASE.weight()))


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
@pytest.mark.parametrize(("m", "splits"), [(8, 1), (8, 3), (9, 1)])
def test_the_gated_linear_matches_float64(m: int, splits: int, activation: str) -> None:
    set_matvec_max_m(8)
    x = CASE.rows(m) / 8
    product = int4_gated_linear(x, *tensors(CASE.packed()), splits, activation)
    expected = float64_gated(x, CASE.weight(), activation)
    assert product.shape == (1, m, CASE.n // 2) and product.dtype == torch.bfloat16
    assert (product.double() - expected).norm() < 1e-2 * expected.norm()


@SETTINGS
@given(
    features=st.integers(1, 300_000), steps=st.integers(1, 400), multiprocessors=st.integers(1, 200)
)
def test_no_program_of_a_split_is_empty(features: int, steps: int, multiprocessors: int) -> None:
    splits = choose_splits(features, steps, multiprocessors)
    each = -(-steps // splits)
    assert 1 <= splits <= 8 and (splits - 1) * each < steps <= splits * each


@pytest.mark.parametrize(("features", "columns", "splits"), [
    *[(16384, 5376, 2), (5376, 8192, 6), (18432, 5376, 3), (5376, 16384, 6), (43008, 5376, 1)],
    *[(5376, 21504, 6), (262144, 5376, 1), (256, 256, 2)],
])  # fmt: skip
def test_narrow_weights_are_split_until_the_gpu_is_full(
    features: int, columns: int, splits: int
) -> None:
    assert choose_splits(features, columns // 128, 132) == splits


@pytest.mark.parametrize(
    ("features", "columns", "splits"), [(28672, 4096, 1), (24576, 4096, 1), (19456, 2560, 4)]
)
def test_a_gated_unit_is_split_only_if_much_of_the_gpu_is_idle(
    features: int, columns: int, splits: int
) -> None:
    assert choose_splits(features, columns // 128, 132, FULL_IF_GATED) == splits


@pytest.mark.parametrize("rows", [-1, 0])
def test_a_limit_below_one_row_is_refused(rows: int) -> None:
    before = set_matvec_max_m(100)
    with pytest.raises(ValueError, match=f"MATVEC_MAX_M must be at least 1, got {rows}"):
        set_matvec_max_m(rows)
    assert api.MATVEC_MAX_M == 100 and before == 4
