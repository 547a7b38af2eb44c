"""The order of packed INT4 weights: there and back, and where the tensor cores want what."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from eagle_aot.triton_kernels.int4_gemm import pack, packable_group, unpack
from support.kernels.int4_cases import Case

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@SETTINGS
@given(
    n=st.integers(1, 400),
    groups=st.integers(1, 9),
    group=st.sampled_from([32, 64, 96, 128, 160, 256]),
    symmetric=st.booleans(),
    integer_zeros=st.booleans(),
)
def test_unpacking_restores_the_weight_bit_for_bit(
    n: int, groups: int, group: int, symmetric: bool, integer_zeros: bool
) -> None:
    case = Case(n, groups * group, group, symmetric)
    qdata, *per_group = case.weight(integer_zeros=integer_zeros)
    packed = pack(qdata, *per_group)
    assert (packed.rows, packed.columns) == (n, groups * group)
    assert packed.group == packable_group(group)
    assert (packed.zeros is None) == bool((per_group[1] == 8).all())
    unpacked, *values = unpack(packed)
    assert torch.equal(unpacked, qdata)
    for value, original in zip(values, per_group, strict=True):
        spread = group // packed.group
        assert torch.equal(value, original.repeat_interleave(spread, dim=0))


@pytest.mark.parametrize(
    ("group", "kernels"), [(32, 32), (64, 64), (128, 128), (96, 32), (256, 128), (5376, 128)]
)
def test_packable_group_is_the_largest_that_divides_a_group(group: int, kernels: int) -> None:
    assert packable_group(group) == kernels


@pytest.mark.parametrize("group", [1, 16, 48, 80])
def test_groups_that_end_within_32_columns_cannot_be_packed(group: int) -> None:
    assert packable_group(group) is None


def operand_place(n: int, word: int) -> tuple[int, int, int, int]:
    """Warp, lane, register and half of element (n, word) of a left operand of 16 x 16 blocks.

    PTX ISA, matrix fragments for mma.m16n8k16: lane = 4 (row mod 8) + (column mod 8) / 2; registers
    0 to 3 hold rows below 8 and columns below 8, rows from 8, columns from 8, both. Warps take 16
    rows each, in turn.
    """
    row, column = n % 16, word % 16
    lane = 4 * (row % 8) + column % 8 // 2
    return n // 16 % 8, lane, row // 8 + 2 * (column // 8), column % 2


def test_sixteen_consecutive_bytes_are_one_threads_operand() -> None:
    """Each nibble is found where the fragment's definition puts it."""
    qdata, scale, zero_point = Case(128, 128, 32).weight()
    stream = pack(qdata, scale, zero_point).codes[0, 0].tolist()
    nibbles = torch.stack((qdata & 0xF, qdata >> 4), dim=-1).flatten(1).tolist()
    for n in range(128):
        for k in range(128):
            quarter, word = k // 32, k % 32
            warp, lane, register, half = operand_place(n, word)
            place = word // 16 * 2048 + (warp * 32 + lane) * 8 + 2 * register + half
            assert (stream[place] >> (4 * quarter)) & 0xF == nibbles[n][k]


def test_scales_are_in_the_order_of_the_products_rows() -> None:
    """A thread holds rows r and r + 8 of a block of 16; groups of a step follow one another."""
    qdata, scale, zero_point = Case(256, 256, 32).weight()
    packed = pack(qdata, scale, zero_point)
    assert packed.zeros is not None
    for values, original in ((packed.scales, scale), (packed.zeros, zero_point)):
        for n in range(256):
            for group in range(8):
                place = (n % 128 // 16 * 8 + n % 8) * 8 + group % 4 * 2 + n % 16 // 8
                assert values[n // 128, group // 4, place] == original[group, n]


def test_padding_of_a_tile_has_zero_scales() -> None:
    packed = Case(37, 160, 32).packed()
    scales, zeros = packed.scales.clone(), packed.zeros
    assert zeros is not None and packed.codes.shape == (1, 2, 4096)

    def whole(values: Tensor) -> Tensor:
        return unpack(type(packed)(packed.codes, values, zeros, 128, 256))[1]

    assert not whole(scales)[:, 37:].any() and not whole(scales)[5:].any()
    assert whole(scales)[:5, :37].all()


def test_fake_weights_are_packed_as_fake_tensors() -> None:
    with FakeTensorMode() as mode:
        weight = [mode.from_tensor(tensor) for tensor in Case(300, 256, 64).weight()]
        packed = pack(*weight)
    assert packed.codes.shape == (3, 2, 4096) and packed.codes.dtype == torch.int16
    assert packed.scales.shape == (3, 2, 256) and packed.zeros is None
