"""Norms, rotation and storing in Triton's interpreter: run by `test_interpreted.py`."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.norm_rope_store import kernel, norm_rope_store_reference
from support.interpreted.as_a_gpu import launched_as_on_a_gpu
from support.kernels.norm_rope_cases import CASES, Case, assert_close, copied, row_alone


@pytest.fixture(autouse=True)
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from launched_as_on_a_gpu(monkeypatch, kernel)


def launch(arguments: list[Any]) -> Tensor:
    parts, cos, sin, q_weight, k_weight, k, v, own, sources, targets, *rest = arguments
    weights = q_weight, k_weight
    return kernel.launch(parts, (cos, sin), weights, (k, v), own, (sources, targets), *rest)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_normalises_rotates_and_stores(case: Case) -> None:
    before = case.arguments()
    after = copied(before)
    assert_close(case, launch(after), after, before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_rounds_where_the_reference_does(case: Case) -> None:
    """But for sums in another order: a few numbers, one step apart."""
    ours, theirs = case.arguments(), case.arguments()
    queries = launch(ours), norm_rope_store_reference(*theirs)
    for a, b in (queries, *zip(ours[5:7], theirs[5:7], strict=True)):
        assert (a != b).float().mean() < 0.01
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    together = case.arguments()
    queries = launch(together)
    for row in range(case.rows):
        alone = row_alone(case, case.arguments(), row)
        assert torch.equal(launch(alone)[0, 0], queries[0, row])
        for cache, whole in zip(alone[5:7], together[5:7], strict=True):
            slot = alone[7][0]
            assert torch.equal(cache[:, slot], whole[:, slot])
