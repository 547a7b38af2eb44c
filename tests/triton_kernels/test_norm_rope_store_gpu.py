"""Norms, rotation and storing on a GPU, at real widths."""

import pytest
import torch

from eagle_aot.triton_kernels.kv_int8 import read_entries
from eagle_aot.triton_kernels.norm_rope_store import norm_rope_store, norm_rope_store_reference
from support.kernels.norm_rope_cases import CASES, Case, assert_close, copied, row_alone

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

WIDE = [
    Case(1, 8, 32, 16, 256, splits=3, norm_values=True),
    Case(4, 4, 32, 4, 512, splits=2, norm_values=True, has_values=False),
    Case(2, 16, 32, 8, 128),
    Case(1, 8, 32, 16, 256, splits=3, norm_values=True, int8=True),
]


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_the_kernel_matches_float64(case: Case) -> None:
    before = case.arguments("cuda")
    after = copied(before)
    assert_close(case, norm_rope_store(*after), after, before)


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_the_kernel_rounds_where_the_reference_does(case: Case) -> None:
    ours, theirs = case.arguments("cuda"), case.arguments("cuda")
    queries = norm_rope_store(*ours), norm_rope_store_reference(*theirs)
    caches = ([read_entries(cache, torch.float32) for cache in x[5:7]] for x in (ours, theirs))
    for a, b in (queries, *zip(*caches, strict=True)):
        # A largest element that is rounded otherwise changes all of its INT8 entry.
        assert (a != b).float().mean() < (0.03 if case.int8 else 0.01)
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(case: Case) -> None:
    for _ in range(20):  # a race does not show every time
        together = case.arguments("cuda")
        queries = norm_rope_store(*together)
        for row in (0, case.rows - 1):
            alone = row_alone(case, case.arguments("cuda"), row)
            assert torch.equal(norm_rope_store(*alone)[0, 0], queries[0, row])
            for cache, whole in zip(alone[5:7], together[5:7], strict=True):
                slots = [int(alone[7][0]), 8, 9, 10]
                one, all_ = (read_entries(x[:, slots], torch.float64) for x in (cache, whole))
                assert torch.equal(one, all_)
