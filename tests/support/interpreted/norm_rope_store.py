"""Norms, rotation and storing in Triton's interpreter: run by `test_interpreted.py`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.kv_int8 import read_entries
from eagle_aot.triton_kernels.norm_rope_store import kernel, norm_rope_store_reference
from support.kernels.norm_rope_cases import CASES, Case, assert_close, copied, row_alone


def launch(arguments: list[Any]) -> Tensor:
    """Launch the kernel with the operator's arguments: rotated queries [1, R, heads, D]."""
    parts, cos, sin, q_weight, k_weight, k, v, slots, sources, targets, *rest = arguments
    weights = q_weight, k_weight
    return kernel.launch(parts, (cos, sin), weights, (k, v), slots, (sources, targets), *rest)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_matches_float64(case: Case) -> None:
    before = case.arguments()
    after = copied(before)
    assert_close(case, launch(after), after, before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_rounds_where_the_reference_does(case: Case) -> None:
    """But for sums in another order: a few numbers, one step apart."""
    ours, theirs = case.arguments(), case.arguments()
    queries = launch(ours), norm_rope_store_reference(*theirs)
    caches = ([read_entries(cache, torch.float32) for cache in x[5:7]] for x in (ours, theirs))
    for a, b in (queries, *zip(*caches, strict=True)):
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
