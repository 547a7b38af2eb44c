"""Packed INT4 layers compute what unpacked ones do."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import settings

from eagle_aot.targets.int4 import (
    Int4Linear,
    Int4Weight,
    PackedGatedInt4,
    PackedInt4Linear,
    PackedProjections,
)
from eagle_aot.triton_kernels.int4_gemm import activate, pack
from support.kernels.int4_cases import Case

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, database=None)
GROUPS = [32, 64, 128, 256]
MULTIPROCESSORS = [1, 132]  # K whole, K split


def weight_of(case: Case) -> Int4Weight:
    return Int4Weight(*case.weight())


def layer(weight: Int4Weight) -> Int4Linear:
    return Int4Linear(weight, torch.bfloat16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("symmetric", [True, False])
def test_packing_on_a_gpu_equals_packing_on_the_host(symmetric: bool) -> None:
    weight = weight_of(Case(1000, 1120, 32, symmetric))
    packed, expected = weight.pack(), pack(weight.qdata, weight.scale, weight.zero_point)
    for name in ("codes", "scales", "zeros"):
        ours, theirs = getattr(packed, name), getattr(expected, name)
        assert ours is theirs is None or (ours.is_cpu and torch.equal(ours, theirs))


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
