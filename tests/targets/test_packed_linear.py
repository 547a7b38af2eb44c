"""Packed INT4 layers compute what unpacked ones do."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensor, FakeTensorMode

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.int4 import (
    Int4Linear,
    Int4Weight,
    PackedGatedInt4,
    PackedInt4Linear,
    PackedProjections,
)
from eagle_aot.targets.int4.linear import PackedModule
from eagle_aot.targets.int4.weight import random_int4
from eagle_aot.triton_kernels.int4_gemm import activate, pack
from support.kernels.int4_cases import Case

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, database=None)
GROUPS = [32, 64, 128, 256]
MULTIPROCESSORS = [1, 132]  # K whole, K split


def weight_of(case: Case) -> Int4Weight:
    return Int4Weight(*case.weight())


def layer(weight: Int4Weight) -> Int4Linear:
    return Int4Linear(weight, torch.bfloat16)


@SETTINGS
@given(
    n=st.integers(1, 300),
    groups=st.integers(1, 5),
    group=st.sampled_from(GROUPS),
    symmetric=st.booleans(),
)
def test_unpacking_restores_a_weight_bit_for_bit(
    n: int, groups: int, group: int, symmetric: bool
) -> None:
    weight = weight_of(Case(n, groups * group, group, symmetric))
    packed = weight.pack()
    assert (packed.zeros is None) == bool((weight.zero_point == 8).all())
    back = Int4Weight.unpack(packed)
    spread = back.scale.shape[0] // groups  # a group of more than 128 columns becomes several
    assert back.shape == weight.shape and back.group_size == group // spread == min(group, 128)
    assert torch.equal(back.qdata, weight.qdata)
    assert torch.equal(back.scale, weight.scale.repeat_interleave(spread, dim=0))
    assert torch.equal(back.zero_point, weight.zero_point.repeat_interleave(spread, dim=0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("symmetric", [True, False])
def test_packing_on_a_gpu_equals_packing_on_the_host(symmetric: bool) -> None:
    weight = weight_of(Case(1000, 1120, 32, symmetric))
    packed, expected = weight.pack(), pack(weight.qdata, weight.scale, weight.zero_point)
    for name in ("codes", "scales", "zeros"):
        ours, theirs = getattr(packed, name), getattr(expected, name)
        assert ours is theirs is None or (ours.is_cpu and torch.equal(ours, theirs))


@pytest.mark.parametrize(
    ("group", "dtype", "message"),
    [
        (
            48,
            torch.bfloat16,
            "INT4 weight: groups of 48 columns, .* read multiples of 32: quantise",
        ),
        (32, torch.float32, "INT4 weight: float32 scales, .* compute in bfloat16: load"),
    ],
)
def test_a_weight_that_the_kernels_cannot_read_is_refused(
    group: int, dtype: torch.dtype, message: str
) -> None:
    weight = random_int4(8, 2 * group, group, dtype)
    with pytest.raises(UnsupportedError, match=message):
        weight.pack()


@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
@pytest.mark.parametrize("m", [1, 4, 5, 40])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", GROUPS)
def test_a_packed_linear_computes_what_the_linear_does(
    group: int, symmetric: bool, m: int, multiprocessors: int
) -> None:
    case = Case(150, 1280, group, symmetric)
    linear, x = layer(weight_of(case)), case.rows(m)
    packed = PackedInt4Linear(linear.weight, multiprocessors)
    assert (packed.splits > 1) == (multiprocessors > 1)
    assert torch.equal(packed(x), linear(x))
    assert torch.equal(packed.dense().weight, linear.dense().weight)


@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
@pytest.mark.parametrize("m", [1, 8, 40])
@pytest.mark.parametrize("symmetric", [(True, True, True), (True, False, True), (False, False)])
def test_packed_projections_compute_what_separate_linears_do(
    symmetric: Sequence[bool], m: int, multiprocessors: int
) -> None:
    """Some weights may have no zero points, and rows may not fill a tile."""
    rows = (200, 37, 64)
    cases = [Case(n, 512, 64, kind) for n, kind in zip(rows, symmetric, strict=False)]
    linears, x = [layer(weight_of(case)) for case in cases], cases[0].rows(m)
    packed = PackedProjections([linear.weight for linear in linears], multiprocessors)
    assert (packed.zeros is None) == all(symmetric)
    for output, linear in zip(packed(x), linears, strict=True):
        assert torch.equal(output, linear(x))


@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
@pytest.mark.parametrize("m", [1, 8, 40])
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
@pytest.mark.parametrize(("rows", "group"), [(8, 32), (104, 64), (128, 256)])
def test_a_packed_gated_pair_computes_what_separate_linears_do(
    rows: int, group: int, activation: str, m: int, multiprocessors: int
) -> None:
    gate_case, up_case = Case(rows, 512, group), Case(rows, 512, group, symmetric=True)
    gate, up = layer(weight_of(gate_case)), layer(weight_of(up_case))
    x = gate_case.rows(m) / 100  # so that the activation is neither 0 nor its argument
    packed = PackedGatedInt4(gate.weight, up.weight, activation, multiprocessors)
    output, expected = packed(x), activate(gate(x), activation) * up(x)
    assert output.shape == (1, m, rows) and torch.equal(output, expected)


def test_packed_layers_can_be_made_and_called_under_fake_tensors() -> None:
    with FakeTensorMode():
        weight = random_int4(256, 256, 32, torch.bfloat16)
        x = torch.zeros(1, 3, 256, dtype=torch.bfloat16)
        layers: list[PackedModule] = [
            PackedInt4Linear(weight, 132),
            PackedProjections([weight, weight], 132),
            PackedGatedInt4(weight, weight, "silu", 132),
        ]
        outputs = [packed(x) for packed in layers]
        shapes = [[y.shape for y in ys] if isinstance(ys, tuple) else ys.shape for ys in outputs]
    assert shapes == [(1, 3, 256), [(1, 3, 256), (1, 3, 256)], (1, 3, 256)]
    weights = [weight for packed in layers for weight in packed.parameters()]
    assert len(weights) == 6 and all(isinstance(weight, FakeTensor) for weight in weights)
