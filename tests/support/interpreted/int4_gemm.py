"""The INT4 kernels in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm import PackedInt4, large_m, small_m
from eagle_aot.triton_kernels.int4_gemm.product_tiles import ProductTile
from eagle_aot.triton_kernels.int4_gemm.row_tiles import ROW_TILES
from eagle_aot.triton_kernels.tiles_of_rows import numbers_of_tiles
from support.interpreted.as_a_gpu import launched_as_on_a_gpu
from support.kernels.int4_cases import (
    Case,
    assert_rounded_weight,
    float64_gated,
    tensors,
)

FLOAT32_SLACK = 1e-5
WIDTHS = 8, 16, 32, 48, 64

CASES = [
    Case(37, 64, 32),
    Case(130, 160, 32, symmetric=True),
    Case(300, 256, 64),
    Case(70, 320, 64, symmetric=True),
    Case(37, 384, 128),
    Case(257, 256, 128, symmetric=True),
    Case(5, 96, 96),
    Case(40, 512, 256),
]


@pytest.fixture(autouse=True)
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from launched_as_on_a_gpu(monkeypatch, small_m, large_m)


def product(x: Tensor, weight: PackedInt4, splits: int = 1) -> Tensor:
    """Parts of the product [splits, 1, M, N]."""
    return small_m.launch(x, *tensors(weight), splits, "")


def test_fresh_memory_holds_nan() -> None:
    assert torch.ones(2).new_empty(100, dtype=torch.bfloat16).isnan().all()


@pytest.mark.parametrize("rows", WIDTHS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rounded_weight_is_multiplied_in_float32(case: Case, rows: int) -> None:
    x = case.rows(rows)
    assert_rounded_weight(product(x, case.packed())[0], x, case.weight(), FLOAT32_SLACK)


def test_a_product_of_large_rows_is_finite() -> None:
    """Codes are centred before they are multiplied: nothing larger than the product is summed."""
    case = Case(37, 64, 32)
    x = case.rows(8) * 5e35
    assert product(x, case.packed()).isfinite().all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    x, weight = case.rows(8), case.packed()
    together = product(x, weight)
    for m in (1, 4, 7):
        assert torch.equal(product(x[:, :m], weight), together[:, :, :m])
    for row in (0, 3, 7):
        assert torch.equal(product(x[:, row : row + 1], weight), together[:, :, row : row + 1])


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    "case", [Case(37, 512, 32), Case(37, 384, 64), Case(70, 768, 128, True)], ids=str
)
def test_a_row_has_its_bits_in_tiles_of_every_width(case: Case, splits: int) -> None:
    """Bit for bit what each row is alone, also in further tiles."""
    x, weight = case.rows(130), case.packed()
    together = product(x, weight, splits)
    for row in (0, 7, 8, 15, 16, 31, 32, 63, 64, 129):
        alone = product(x[:, row : row + 1], weight, splits)
        assert torch.equal(alone, together[:, :, row : row + 1])
    for rows in (8, 9, 16, 17, 31, 32, 33, 48, 49, 64, 65):
        assert torch.equal(product(x[:, :rows], weight, splits), together[:, :, :rows])
    assert torch.equal(product(x[:, 60:100], weight, splits), together[:, :, 60:100])


@pytest.mark.parametrize("blocks", [1, 2])
def test_rows_take_the_narrowest_tiles_that_hold_them(blocks: int) -> None:
    for rows in range(1, 200):
        ((tile, number),) = numbers_of_tiles(rows, ROW_TILES[blocks])
        assert tile.rows == next((width for width in WIDTHS if rows <= width), WIDTHS[-1])
        assert number == -(-rows // tile.rows)


@pytest.mark.parametrize("splits", [1, 2, 3, 4])
@pytest.mark.parametrize("group", [32, 128])
def test_every_split_of_k_sums_to_the_product(group: int, splits: int) -> None:
    case = Case(37, 8 * 128, group)
    x = case.rows(3)
    parts = product(x, case.packed(), splits)
    assert parts.shape == (splits, 1, 3, 37)
    assert parts.dtype == (torch.bfloat16 if splits == 1 else torch.float32)
    total = parts[0] if splits == 1 else parts.sum(0)
    assert_rounded_weight(total, x, case.weight(), FLOAT32_SLACK)


def test_a_matrix_gives_a_matrix() -> None:
    x, weight = CASES[0].rows(3), CASES[0].packed()
    assert torch.equal(product(x[0], weight), product(x, weight)[:, 0])


@pytest.mark.parametrize("rows", [3, 11, 20, 40])
@pytest.mark.parametrize("few", [True, False])
def test_rows_and_columns_outside_the_output_are_not_touched(
    monkeypatch: pytest.MonkeyPatch, few: bool, rows: int
) -> None:
    """Outputs at the start of a buffer: whatever follows keeps its NaN."""
    case = Case(37, 64, 64)
    weight, x = case.packed(), case.rows(rows)[0]
    buffer = torch.full((2048,), torch.nan, dtype=torch.bfloat16)
    allocate = Tensor.new_empty

    def from_buffer(x: Tensor, shape: int | tuple[int, ...], **options: object) -> Tensor:
        if shape not in ((1, rows, 37), (rows, 37)):  # the interpreter's own
            return allocate(x, shape, **options)
        return buffer[: rows * 37].view(shape)

    monkeypatch.setattr(Tensor, "new_empty", from_buffer)
    output = product(x, weight) if few else large_m.launch(x, *tensors(weight), "")
    assert output.data_ptr() == buffer.data_ptr()
    assert not buffer[: rows * 37].isnan().any() and buffer[rows * 37 :].isnan().all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_many_rows_are_multiplied_with_the_weight_rounded(case: Case) -> None:
    for rows in (9, 150):
        x = case.rows(rows)
        output = large_m.launch(x, *tensors(case.packed()), "")
        assert_rounded_weight(output, x, case.weight(), FLOAT32_SLACK)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_how_many_rows_are_taken_at_once_changes_no_bit(case: Case) -> None:
    """Nor by what tiles, nor whether blocks of one group are taken one by one."""
    x, weight = case.rows(150), tensors(case.packed())
    together = large_m.launch(x, *weight, "")
    for first, behind in ((0, 65), (65, 66), (3, 140)):
        cut = large_m.launch(x[:, first:behind], *weight, "")
        assert torch.equal(cut, together[:, first:behind])
    by_block = case.packed().group == 128
    for tile in (ProductTile(2, 128, 8, 2), ProductTile(2, 64, 4, 3, by_block)):
        assert torch.equal(large_m.launch(x, *weight, "", tile), together)


@pytest.mark.parametrize("rows", [5, 11, 30, 70])
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
@pytest.mark.parametrize("case", [Case(272, 128, 32), Case(80, 256, 128)], ids=str)
def test_a_gated_unit_is_activated_where_it_is_summed(
    case: Case, activation: str, rows: int
) -> None:
    x, weight = case.rows(rows) / 8, tensors(case.packed())
    expected = float64_gated(x, case.weight(), activation)
    few = small_m.launch(x, *weight, 1, activation)[0]
    many = large_m.launch(x, *weight, activation)
    for output in (few, many):
        error = (output.double() - expected).norm() / expected.norm()
        assert output.shape == expected.shape and error < 5e-3
