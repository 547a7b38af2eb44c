"""Dense weights to INT4: how far from the weight, against float64."""

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
    generator = torch.Generator().manual_seed(seed)
    return scale * (torch.randn(rows, columns, generator=generator) + shift)


def errors(weight: Tensor, quantised: Int4Weight) -> Tensor:
    """float64 [N, K / g, g], in steps of the grid."""
    exact = Int4Weight(quantised.qdata, quantised.scale.double(), quantised.zero_point.double())
    difference = (dense(exact) - weight.double()).unflatten(1, (-1, exact.group_size))
    return difference / exact.scale.t().unsqueeze(-1)


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_rounding_to_nearest_is_off_by_half_a_step_at_most(
    rows: int, groups: int, group: int, scale: float, shift: float, dtype: torch.dtype, seed: int
) -> None:
    weight = random_weight(rows, groups * group, scale, shift, seed)
    found = quantise(weight, Scheme(group), dtype)
    assert (found.shape, found.group_size) == ((rows, groups * group), group)
    assert torch.equal(found.zero_point, found.zero_point.round())
    slack = MAX_CODE * torch.finfo(dtype).eps  # a scale that was rounded down ends earlier
    assert float(errors(weight, found).abs().max()) <= 0.5 + slack


@settings(max_examples=40, deadline=None)
@given(**SHAPES)
def test_hqq_is_never_worse_than_rounding_in_any_group(
    rows: int, groups: int, group: int, scale: float, shift: float, dtype: torch.dtype, seed: int
) -> None:
    weight = random_weight(rows, groups * group, scale, shift, seed)
    found = {m: quantise(weight, Scheme(group, m), dtype) for m in (RTN, HQQ)}
    means = {m: errors(weight, q).abs().mean(-1) for m, q in found.items()}
    assert torch.equal(found[RTN].scale, found[HQQ].scale)
    assert bool((means[HQQ] <= means[RTN] + 1e-6).all())


def test_hqq_is_better_where_a_few_weights_fit_badly() -> None:
    weight = random_weight(64, 1024, 0.02, 0.0, 0)
    weight[:, ::61] *= 6
    found = {m: errors(weight, quantise(weight, Scheme(64, m), torch.float32)) for m in (RTN, HQQ)}
    means = {m: float(error.abs().mean()) for m, error in found.items()}
    assert means[HQQ] < 0.97 * means[RTN]


@pytest.mark.parametrize("method", [RTN, HQQ])
def test_scale_and_zero_point_are_values_of_the_dtype(method: str) -> None:
    weight = random_weight(8, 128, 0.02, 0.1, 3)
    found = quantise(weight, Scheme(32, method), torch.bfloat16)
    for values in (found.scale, found.zero_point):
        assert torch.equal(values, values.bfloat16().float())
    assert bool(((found.zero_point >= 0) & (found.zero_point <= 15)).all())


@pytest.mark.parametrize("method", [RTN, HQQ])
@pytest.mark.parametrize("value", [0.0, 1.5, -0.25, 1e-38])
def test_a_constant_group_is_kept(method: str, value: float) -> None:
    weight = torch.full((2, 64), value)
    found = dense(quantise(weight, Scheme(32, method), torch.float32))
    torch.testing.assert_close(found, weight, rtol=1e-6, atol=1e-37)


def test_what_lies_on_the_grid_is_found_again() -> None:
    codes = torch.randint(0, 16, (4, 64))
    codes[:, ::32], codes[:, 1::32] = 0, 15
    weight = (codes - 5) * 0.25
    for method in (RTN, HQQ):
        assert torch.equal(dense(quantise(weight, Scheme(32, method), torch.bfloat16)), weight)


def test_rows_are_the_same_alone_and_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_weight(70, 64, 0.02, 0.0, 1)
    whole = quantise(weight, Scheme(32, HQQ), torch.bfloat16)
    monkeypatch.setattr("eagle_aot.targets.int4.quantise.ROWS_AT_ONCE", 70)
    assert torch.equal(dense(quantise(weight, Scheme(32, HQQ), torch.bfloat16)), dense(whole))


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Tests run with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_threads_change_nothing_but_the_time() -> None:
    weight = random_weight(9 * ROWS_AT_ONCE + 5, 96, 0.02, 0.0, 0)
    found = quantise(weight, Scheme(32), torch.bfloat16)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    expected = quantise(weight, Scheme(32), torch.bfloat16)
    for name in ("qdata", "scale", "zero_point"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


@pytest.mark.usefixtures("two_threads")
def test_threads_come_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(quantise_module, "_rows", fail)
    with pytest.raises(MemoryError):
        quantise(torch.ones(9 * ROWS_AT_ONCE, 32), Scheme(32), torch.bfloat16)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_weight_without_values_is_quantised_as_well() -> None:
    with FakeTensorMode():
        weight = torch.empty(100 * ROWS_AT_ONCE, 96)
        found = quantise(weight, Scheme(32), torch.bfloat16)
    assert isinstance(found.qdata, FakeTensor)
    assert found.shape == weight.shape and found.group_size == 32


def test_columns_must_be_whole_groups() -> None:
    with pytest.raises(
        SettingError, match="--quantize: a weight has 48 columns, no multiple of 32"
    ):
        quantise(torch.randn(2, 48), SCHEMES["int4-g32"], torch.float32)


def test_the_names_say_group_and_method() -> None:
    assert SCHEMES["int4-g64"] == Scheme(64, RTN)
    assert SCHEMES["int4-g128-hqq"] == Scheme(128, HQQ)
    assert len(SCHEMES) == 6
