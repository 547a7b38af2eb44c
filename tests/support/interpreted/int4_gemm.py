"""The INT4 kernels in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm import PackedInt4, large_m, small_m
from eagle_aot.triton_kernels.int4_gemm.tiling import SMALL_M_TILES, LargeMTile
from eagle_aot.triton_kernels.row_tiling import tile_counts
from support.interpreted.as_a_gpu import allocate_output
from support.kernels.int4_cases import Case, assert_rounded_weight, float64_gated, tensors

FLOAT32_SLACK = 1e-5
WIDTHS = 8, 16, 32, 48, 64, 80, 96

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


def product(x: Tensor, weight: PackedInt4, splits: int = 1) -> Tensor:
    """Return the parts of the product, [splits, 1, M, N]."""
    return small_m.launch(x, *tensors(weight), splits, "")


def test_fresh_memory_holds_nan() -> None:
    assert torch.ones(2).new_empty(100, dtype=torch.bfloat16).isnan().all()


@pytest.mark.parametrize("rows", WIDTHS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_small_m_product_is_that_of_the_rounded_weight(case: Case, rows: int) -> None:
    x = case.rows(rows)
    assert_rounded_weight(product(x, case.packed())[0], x, case.weight(), FLOAT32_SLACK)


def test_a_product_of_large_rows_is_finite() -> None:
    """Codes are centred before they are multiplied, so no sum is larger than the product."""
    case = Case(37, 64, 32)
    assert product(case.rows(8) * 5e35, case.packed()).isfinite().all()


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
    "case", [Case(37, 256, 32), Case(37, 384, 64), Case(70, 384, 128, True)], ids=str
)
def test_a_rows_bits_do_not_depend_on_the_tile_size(case: Case, splits: int) -> None:
    """Rows have the same bits alone, and in any tile."""
    x, weight = case.rows(130), case.packed()
    together = product(x, weight, splits)
    for row in (0, 8, 31, 64, 129):
        alone = product(x[:, row : row + 1], weight, splits)
        assert torch.equal(alone, together[:, :, row : row + 1])
    for rows in (8, 9, 17, 33, 49, 65, 90, 97):
        assert torch.equal(product(x[:, :rows], weight, splits), together[:, :, :rows])
    assert torch.equal(product(x[:, 60:100], weight, splits), together[:, :, 60:100])


@pytest.mark.parametrize("blocks", [1, 2])
def test_tile_counts_use_the_smallest_tile_that_holds_all_rows(blocks: int) -> None:
    tiles = SMALL_M_TILES[blocks]
    for rows in range(1, 300):
        ((tile, number),) = tile_counts(rows, tiles)
        assert tile == next((tile for tile in tiles if rows <= tile.rows), tiles[-1])
        assert number == -(-rows // tile.rows)


@pytest.mark.parametrize("splits", [1, 2, 3, 4])
@pytest.mark.parametrize("group", [32, 128])
def test_the_parts_of_every_split_add_up_to_the_product(group: int, splits: int) -> None:
    case = Case(37, 8 * 128, group)
    x = case.rows(3)
    parts = product(x, case.packed(), splits)
    assert parts.shape == (splits, 1, 3, 37)
    assert parts.dtype == (torch.bfloat16 if splits == 1 else torch.float32)
    total = parts[0] if splits == 1 else parts.sum(0)
    assert_rounded_weight(total, x, case.weight(), FLOAT32_SLACK)


def test_a_matrix_without_a_batch_dimension_is_multiplied() -> None:
    x, weight = CASES[0].rows(3), CASES[0].packed()
    assert torch.equal(product(x[0], weight), product(x, weight)[:, 0])


@pytest.mark.parametrize("rows", [3, 11, 20, 40])
@pytest.mark.parametrize("few", [True, False])
def test_memory_after_the_output_is_not_written(
    monkeypatch: pytest.MonkeyPatch, few: bool, rows: int
) -> None:
    case = Case(37, 64, 64)
    weight, x = case.packed(), case.rows(rows)[0]
    buffer = torch.full((2048,), torch.nan, dtype=torch.bfloat16)
    allocate_output(monkeypatch, buffer, (1, rows, 37), (rows, 37))
    output = product(x, weight) if few else large_m.launch(x, *tensors(weight), "")
    assert output.data_ptr() == buffer.data_ptr()
    assert not buffer[: rows * 37].isnan().any() and buffer[rows * 37 :].isnan().all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_large_m_product_is_that_of_the_rounded_weight(case: Case) -> None:
    for rows in (9, 150):
        x = case.rows(rows)
        output = large_m.launch(x, *tensors(case.packed()), "")
        assert_rounded_weight(output, x, case.weight(), FLOAT32_SLACK)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_chunk_and_the_tile_size_change_no_bit(case: Case) -> None:
    """Processing blocks of a single group one by one changes no bit either."""
    x, weight = case.rows(150), tensors(case.packed())
    together = large_m.launch(x, *weight, "")
    for first, end in ((0, 65), (65, 66), (3, 140)):
        cut = large_m.launch(x[:, first:end], *weight, "")
        assert torch.equal(cut, together[:, first:end])
    by_block = case.packed().group == 128
    for tile in (LargeMTile(2, 128, 8, 2), LargeMTile(2, 64, 4, 3, by_block)):
        assert torch.equal(large_m.launch(x, *weight, "", tile), together)


@pytest.mark.parametrize("rows", [5, 11, 30, 70])
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
@pytest.mark.parametrize("case", [Case(272, 128, 32), Case(80, 256, 128)], ids=str)
def test_gated_products_match_float64(case: Case, activation: str, rows: int) -> None:
    x, weight = case.rows(rows) / 8, tensors(case.packed())
    expected = float64_gated(x, case.weight(), activation)
    few = small_m.launch(x, *weight, 1, activation)[0]
    many = large_m.launch(x, *weight, activation)
    for output in (few, many):
        error = (output.double() - expected).norm() / expected.norm()
        assert output.shape == expected.shape and error < 5e-3
