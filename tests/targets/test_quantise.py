"""The error of quantising dense weights to INT4, computed in float64."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode

from eagle_aot.common.errors import SettingError
from eagle_aot.targets.int4 import Int4Weight
from eagle_aot.targets.int4 import quantise as quantise_module
from eagle_aot.targets.int4.quantise import (
    HQQ,
    MAX_CODE,
    ROWS_AT_ONCE,
    RTN,
    SCHEMES,
    Scheme,
    quantise,
)
from support.files.int4 import dense

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SHAPES = {
    "rows": st.integers(1, 9),
    "groups": st.integers(1, 4),
    "group": st.sampled_from([32, 64, 128]),
    "scale": st.sampled_from([1e-4, 0.02, 3.0]),
    "shift": st.sampled_from([-2.0, 0.0, 0.4]),
    "dtype": DTYPES,
    "seed": st.integers(0, 2**31),
}


def random_weight(rows: int, columns: int, scale: float, shift: float, seed: int) -> Tensor:
    """Return a float32 weight [rows, columns]."""
    generator = torch.Generator().manual_seed(seed)
    return scale * (torch.randn(rows, columns, generator=generator) + shift)


def errors(weight: Tensor, quantised: Int4Weight) -> Tensor:
    """Return the errors of a weight in steps of the grid, float64 [N, K / g, g]."""
    exact = Int4Weight(quantised.qdata, quantised.scale.double(), quantised.zero_point.double())
    difference = (dense(exact) - weight.double()).unflatten(1, (-1, exact.group_size))
    return difference / exact.scale.t().unsqueeze(-1)


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_the_rtn_error_is_at_most_half_a_step(
    rows: int, groups: int, group: int, scale: float, shift: float, dtype: torch.dtype, seed: int
) -> None:
    weight = random_weight(rows, groups * group, scale, shift, seed)
    quantised = quantise(weight, Scheme(group), dtype)
    assert (quantised.shape, quantised.group_size) == ((rows, groups * group), group)
    assert torch.equal(quantised.zero_point, quantised.zero_point.round())
    slack = MAX_CODE * torch.finfo(dtype).eps  # a scale that is rounded down covers less
    assert float(errors(weight, quantised).abs().max()) <= 0.5 + slack


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_hqq_is_never_worse_than_rtn_in_any_group(
    rows: int, groups: int, group: int, scale: float, shift: float, dtype: torch.dtype, seed: int
) -> None:
    weight = random_weight(rows, groups * group, scale, shift, seed)
    quantised = {m: quantise(weight, Scheme(group, m), dtype) for m in (RTN, HQQ)}
    means = {m: errors(weight, q).abs().mean(-1) for m, q in quantised.items()}
    assert torch.equal(quantised[RTN].scale, quantised[HQQ].scale)
    assert bool((means[HQQ] <= means[RTN] + 1e-6).all())


def test_hqq_is_better_with_outliers() -> None:
    weight = random_weight(64, 1024, 0.02, 0.0, 0)
    weight[:, ::61] *= 6
    by_method = {
        m: errors(weight, quantise(weight, Scheme(64, m), torch.float32)) for m in (RTN, HQQ)
    }
    means = {m: float(error.abs().mean()) for m, error in by_method.items()}
    assert means[HQQ] < 0.97 * means[RTN]


@pytest.mark.parametrize("method", [RTN, HQQ])
def test_scales_and_zero_points_are_values_of_the_dtype(method: str) -> None:
    weight = random_weight(8, 128, 0.02, 0.1, 3)
    quantised = quantise(weight, Scheme(32, method), torch.bfloat16)
    for values in (quantised.scale, quantised.zero_point):
        assert torch.equal(values, values.bfloat16().float())
    assert bool(((quantised.zero_point >= 0) & (quantised.zero_point <= 15)).all())


@pytest.mark.parametrize("method", [RTN, HQQ])
@pytest.mark.parametrize("value", [0.0, 1.5, -0.25, 1e-38])
def test_a_constant_group_is_exact(method: str, value: float) -> None:
    weight = torch.full((2, 64), value)
    quantised = dense(quantise(weight, Scheme(32, method), torch.float32))
    torch.testing.assert_close(quantised, weight, rtol=1e-6, atol=1e-37)


def test_weights_on_a_grid_are_restored_exactly() -> None:
    codes = torch.randint(0, 16, (4, 64))
    codes[:, ::32], codes[:, 1::32] = 0, 15
    weight = (codes - 5) * 0.25
    for method in (RTN, HQQ):
        assert torch.equal(dense(quantise(weight, Scheme(32, method), torch.bfloat16)), weight)


def test_a_row_is_quantised_alike_alone_and_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_weight(70, 64, 0.02, 0.0, 1)
    whole = quantise(weight, Scheme(32, HQQ), torch.bfloat16)
    monkeypatch.setattr("eagle_aot.targets.int4.quantise.ROWS_AT_ONCE", 70)
    assert torch.equal(dense(quantise(weight, Scheme(32, HQQ), torch.bfloat16)), dense(whole))


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Tests run with one thread by default."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_does_not_change_the_result() -> None:
    weight = random_weight(9 * ROWS_AT_ONCE + 5, 96, 0.02, 0.0, 0)
    quantised = quantise(weight, Scheme(32), torch.bfloat16)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    expected = quantise(weight, Scheme(32), torch.bfloat16)
    for name in ("qdata", "scale", "zero_point"):
        assert torch.equal(getattr(quantised, name), getattr(expected, name))


@pytest.mark.usefixtures("two_threads")
def test_torchs_number_of_threads_is_restored_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(quantise_module, "_quantise_rows", fail)
    with pytest.raises(MemoryError):
        quantise(torch.ones(9 * ROWS_AT_ONCE, 32), Scheme(32), torch.bfloat16)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_fake_tensor_can_be_quantised() -> None:
    with FakeTensorMode():
        weight = torch.empty(100 * ROWS_AT_ONCE, 96)
        quantised = quantise(weight, Scheme(32), torch.bfloat16)
    assert isinstance(quantised.qdata, FakeTensor)
    assert quantised.shape == weight.shape and quantised.group_size == 32


def test_columns_must_be_whole_groups() -> None:
    with pytest.raises(
        SettingError, match="--quantize: a weight has 48 columns, not a multiple of 32"
    ):
        quantise(torch.randn(2, 48), SCHEMES["int4-g32"], torch.float32)


def test_scheme_names_contain_group_size_and_method() -> None:
    assert SCHEMES["int4-g64"] == Scheme(64, RTN)
    assert SCHEMES["int4-g128-hqq"] == Scheme(128, HQQ)
    assert len(SCHEMES) == 6
