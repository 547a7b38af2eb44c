"""The experts' kernels in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.triton_kernels.int4_experts import few_rows, many_rows, order
from eagle_aot.triton_kernels.int4_experts.reference import experts_order_reference
from eagle_aot.triton_kernels.int4_experts.tiling import FEW_ROWS_TILES, FewRowsTile
from support.kernels.experts_cases import Experts, float64_mixture

CASES = [
    Experts(6, 3, 64, 32),
    Experts(5, 2, 160, 96, (32, 96), True, "silu"),
    Experts(9, 1, 256, 128, (128, 128), True, "silu"),
    Experts(4, 4, 128, 704, (64, 32)),  # every row takes every expert; K is no multiple of 128
]
SMALL = CASES[0]


def few(
    case: Experts, x: Tensor, weights: Tensor, ids: Tensor, tile: FewRowsTile | None = None
) -> Tensor:
    """Return the parts of the mixture, [k, M, H]."""
    gate_up, down = case.packed()
    hidden = few_rows.launch(x, ids, None, *gate_up, case.activation, tile)
    return few_rows.launch(hidden, ids, weights, *down, "", tile)


def many(case: Experts, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    gate_up, down = case.packed()
    ordered, starts = order.launch(ids, case.count)
    hidden = many_rows.launch(x, ids, ordered, starts, None, *gate_up, case.activation)
    return many_rows.launch(hidden, ids, ordered, starts, weights, *down, "")


@pytest.mark.parametrize(
    ("case", "rows"), [*[(case, 20) for case in CASES[:3]], (SMALL, 1), (CASES[3], 3)], ids=str
)
def test_both_products_match_float64_and_each_other_bit_for_bit(case: Experts, rows: int) -> None:
    x, (weights, ids) = case.rows(rows), case.routes(rows)
    parts = few(case, x, weights, ids)
    expected = float64_mixture(case, x, weights, ids)
    assert parts.shape == (case.top_k, rows, case.hidden) and parts.dtype == torch.float32
    assert (parts.double().sum(0) - expected).norm() < 5e-3 * expected.norm()
    assert torch.equal(many(case, x, weights, ids), parts)


@st.composite
def routes(draw: st.DrawFn) -> Tensor:
    """Draw ids int64 [M, k] of distinct experts of `SMALL`, often the same ones."""
    rows = draw(st.sampled_from([1, 2, 8, 9, 17, 33]))
    one = st.permutations(range(SMALL.count)).map(lambda ids: ids[: SMALL.top_k])
    few_routes = draw(st.lists(one, min_size=1, max_size=4))
    return torch.tensor([few_routes[draw(st.integers(0, len(few_routes) - 1))]
                         for _ in range(rows)])  # fmt: skip


@settings(max_examples=8, deadline=None, derandomize=True)
@given(routes())
def test_a_rows_bits_do_not_depend_on_who_shares_its_experts(ids: Tensor) -> None:
    x, (weights, _) = SMALL.rows(len(ids)), SMALL.routes(len(ids))
    together = few(SMALL, x, weights, ids)
    for row in {0, len(ids) // 2, len(ids) - 1}:
        alone = slice(row, row + 1)
        assert torch.equal(few(SMALL, x[alone], weights[alone], ids[alone]), together[:, alone])
    assert torch.equal(many(SMALL, x, weights, ids), together)


def test_an_expert_with_more_rows_than_a_tile_takes_all_of_them() -> None:
    x, (weights, ids) = SMALL.rows(64), SMALL.routes(64)
    ids = torch.tensor([[4, 0, 2]]).expand(64, 3)
    together = few(SMALL, x, weights, ids)
    for row in (0, 15, 16, 63):
        alone = slice(row, row + 1)
        assert torch.equal(few(SMALL, x[alone], weights[alone], ids[alone]), together[:, alone])


@pytest.mark.parametrize("case", [SMALL, CASES[1]], ids=str)
@pytest.mark.parametrize(("width", "outputs"), [(8, 128), (32, 64)])
def test_the_size_of_a_tile_changes_no_bit(case: Experts, width: int, outputs: int) -> None:
    x, (weights, ids) = case.rows(20), case.routes(20)
    wide = width == 32
    tile = FewRowsTile(32, width, 4, 3, pairs=wide, whole=wide, outputs=outputs)
    assert torch.equal(few(case, x, weights, ids, tile), few(case, x, weights, ids))


def test_experts_that_no_row_takes_are_not_read() -> None:
    """Experts that no row takes have scales that would show."""
    x = SMALL.rows(2)
    ids = torch.tensor([[1, 3, 5], [3, 1, 5]])
    gate_up, _ = SMALL.packed()
    scales = gate_up[1].clone()
    scales[[0, 2, 4]] = torch.nan
    out = few_rows.launch(x, ids, None, gate_up[0], scales, *gate_up[2:], "gelu_tanh")
    assert out.isfinite().all()


@pytest.mark.parametrize(("rows", "experts"), [(1, 4), (700, 5), (2000, 37)])
def test_assignments_are_sorted_by_expert(rows: int, experts: int) -> None:
    ids = torch.randint(experts, (rows, 3))
    for result, expected in zip(
        order.launch(ids, experts), experts_order_reference(ids, experts), strict=True
    ):
        assert torch.equal(result, expected)


def test_tiles_hold_all_few_rows() -> None:
    assert {tiles[-1].rows for tiles in FEW_ROWS_TILES.values()} == {64}
