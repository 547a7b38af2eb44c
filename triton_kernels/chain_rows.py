"""A round's work on chains around the target's forward, as three GPU kernels.

PyTorch's operators take 15 to 20, of 1 to 2 us each. Shapes: B texts, T rows each, D slots of a
tail. Importing this module needs triton.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 16
"""Rows that a program makes; those of a prompt may be many."""


# Of pointers too: whether those of a prompt's rows are aligned depends on its length.
@triton.jit(
    do_not_specialize=[
        *("bonus_ptr", "drafts_ptr", "first_ptr", "further_ptr", "rows"),
        *("bonus_pitch", "drafts_pitch", "drafts_step", "first_pitch", "further_pitch"),
    ]
)
def rows_kernel(
    bonus_ptr: tl.tensor,
    drafts_ptr: tl.tensor,
    first_ptr: tl.tensor,
    further_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    tail_ptr: tl.tensor,
    rows: tl.tensor,
    bonus_pitch: tl.tensor,
    drafts_pitch: tl.tensor,
    drafts_step: tl.tensor,
    first_pitch: tl.tensor,
    further_pitch: tl.tensor,
    BLOCK: tl.constexpr,
    TAIL: tl.constexpr,
    TAIL_WIDTH: tl.constexpr,
    LIMITED: tl.constexpr,
) -> None:
    """Write BLOCK rows of a text, with tails of TAIL slots, which is at most TAIL_WIDTH."""
    text, back = tl.program_id(0), tl.arange(0, TAIL_WIDTH)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, at = row < rows, text * rows + row
    bonus = tl.load(bonus_ptr + text * bonus_pitch)
    drafts = drafts_ptr + text * drafts_pitch + (row - 1) * drafts_step
    tl.store(tokens_ptr + at, tl.load(drafts, mask=inside & (row > 0), other=bonus), mask=inside)
    first = tl.load(first_ptr + text * first_pitch)
    is_valid = inside & (first >= 0)
    if LIMITED:
        is_valid &= row <= tl.load(further_ptr + text * further_pitch)
    position = tl.where(is_valid, first + row, -1)
    tl.store(positions_ptr + at, position, mask=inside)
    slot = tl.maximum(position[:, None] + (back - (TAIL - 1))[None, :], -1)
    tail = tail_ptr + at[:, None] * TAIL + back[None, :]
    tl.store(tail, slot, mask=inside[:, None] & (back < TAIL)[None, :])


@triton.jit(do_not_specialize=["rows"])
def accept_kernel(
    tokens_ptr: tl.tensor,
    choices_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    count_ptr: tl.tensor,
    rows: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    """Write how many drafts of a text, in its at most WIDTH rows, equal the choices before them."""
    text, row = tl.program_id(0), tl.arange(0, WIDTH)
    at, has_draft = text * rows + row, row < rows - 1
    choice = tl.load(choices_ptr + at, mask=has_draft, other=0)
    draft = tl.load(tokens_ptr + at + 1, mask=has_draft, other=0)
    position = tl.load(positions_ptr + at + 1, mask=has_draft, other=-1)
    matches = (draft == choice) & (position >= 0)
    tl.store(count_ptr + text, tl.min(tl.where(matches, WIDTH, row), 0))


@triton.jit(
    do_not_specialize=[
        *("tokens_ptr", "count_ptr", "first_ptr", "rows", "count_pitch", "first_pitch")
    ]
)
def advance_kernel(
    tokens_ptr: tl.tensor,
    count_ptr: tl.tensor,
    first_ptr: tl.tensor,
    bonus_ptr: tl.tensor,
    position_ptr: tl.tensor,
    moves_ptr: tl.tensor,
    rows: tl.tensor,
    count_pitch: tl.tensor,
    first_pitch: tl.tensor,
    TAIL: tl.constexpr,
    TAIL_WIDTH: tl.constexpr,
) -> None:
    """Write the bonus token and the position of a text after its path, and TAIL moves: none."""
    text, slot = tl.program_id(0), tl.arange(0, TAIL_WIDTH)
    count = tl.load(count_ptr + text * count_pitch)
    first = tl.load(first_ptr + text * first_pitch)
    tl.store(bonus_ptr + text, tl.load(tokens_ptr + text * rows + count))
    tl.store(position_ptr + text, tl.where(first >= 0, first + count + 1, -1))
    tl.store(moves_ptr + text * TAIL + slot, -1, mask=slot < TAIL)


def launch_rows(
    bonus: Tensor, drafts: Tensor, first: Tensor, further: Tensor | None, tail_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens int64 [B, T], positions int64 [B, T] and tails int64 [B, T, D] of chains.

    The first column of `bonus` int64 [B, any] is before `drafts` int64 [B, T - 1]. `first` int64
    [B] are the positions of the first rows, negative for padding; `further` int64 [B], at least 0,
    is how many rows after the first are valid, all of them where it is None. All of these may be
    expanded.
    """
    texts, rows = len(drafts), drafts.shape[1] + 1
    tokens, positions = drafts.new_empty((texts, rows)), drafts.new_empty((texts, rows))
    tail = drafts.new_empty((texts, rows, tail_length))
    limits = first if further is None else further
    rows_kernel[(texts, triton.cdiv(rows, BLOCK))](
        *(bonus, drafts, first, limits, tokens, positions, tail),
        *(rows, bonus.stride(0), *drafts.stride(), first.stride(0), limits.stride(0)),
        BLOCK=BLOCK,
        TAIL=tail_length,
        TAIL_WIDTH=triton.next_power_of_2(tail_length),
        LIMITED=further is not None,
        num_warps=1,
    )
    return tokens, positions, tail


def launch_accept(tokens: Tensor, choices: Tensor, positions: Tensor) -> Tensor:
    """Return how many drafts of each chain come before the first that is not the choice of the row
    before it, or that has no position: int64 [B]. All arguments are int64 [B, T], by row."""
    assert tokens.is_contiguous() and choices.is_contiguous() and positions.is_contiguous()
    texts, rows = tokens.shape
    count = tokens.new_empty(texts)
    width = triton.next_power_of_2(rows)
    accept_kernel[(texts,)](tokens, choices, positions, count, rows, WIDTH=width, num_warps=1)
    return count


def launch_advance(
    tokens: Tensor,
    count: Tensor,
    first: Tensor,
    bonus: Tensor,
    position: Tensor,
    moves: Tensor,
) -> None:
    """Write the state after paths: `bonus` int64 [B, 1], `position` int64 [B], -1 for padding, and
    `moves` int64 [B, D], all -1.

    Paths chose `tokens` int64 [B, T], the last at `count` int64 [B]; they begin at the positions
    `first` int64 [B], negative for padding. `count` and `first` may be expanded.
    """
    assert all(x.is_contiguous() for x in (tokens, bonus, position, moves))
    texts, tail = moves.shape
    advance_kernel[(texts,)](
        *(tokens, count, first, bonus, position, moves),
        *(tokens.shape[1], count.stride(0), first.stride(0)),
        TAIL=tail,
        TAIL_WIDTH=triton.next_power_of_2(tail),
        num_warps=1,
    )
