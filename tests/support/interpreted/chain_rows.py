"""A round's work on chains in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import pytest

from eagle_aot.triton_kernels import chain_rows
from support.kernels.chain_cases import ROWS, check_accept, check_advance, check_rows


@pytest.mark.parametrize("rows", ROWS)
def test_rows_have_positions_and_tails(rows: int) -> None:
    check_rows(chain_rows, rows)


@pytest.mark.parametrize("rows", ROWS)
def test_drafts_are_accepted_up_to_the_first_mismatch(rows: int) -> None:
    check_accept(chain_rows, rows)


@pytest.mark.parametrize("rows", ROWS)
def test_the_state_of_a_batch_is_written_in_place(rows: int) -> None:
    check_advance(chain_rows, rows)
