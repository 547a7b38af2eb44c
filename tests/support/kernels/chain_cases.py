"""Chains of texts in one batch, for tests of a round's kernels: padding, limits, mismatches."""

from types import ModuleType

import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.acceptance import Accepted, accept
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.step import (
    Draft,
    DraftLimits,
    StepRows,
    chain_rows,
    rows_after,
)

EVERY_FIRST = torch.tensor([5, 6, 7, -1, 0, 700]).repeat_interleave(2)
FIRST = EVERY_FIRST[::2]  # not contiguous
SEQUENCES = torch.arange(len(FIRST))
ROWS = [1, 2, 5, 64]
TAIL = 12  # no power of two


def further_of(rows: int) -> Tensor:
    """Return how many rows after the first each text has, int64 [B]."""
    return torch.tensor([*4 * [rows - 1], 0, rows // 2])


def step_of(rows: int) -> tuple[StepRows, Tensor]:
    """Return chains of at most so many rows, and choices int64 [B, T]: the first text accepts all
    of its drafts, the second none and the third some; the others are padding or have fewer."""
    tokens = torch.arange(len(FIRST) * rows).view(-1, rows)
    choices = tokens + 1
    choices[1, 0] = choices[2, rows // 2] = -1
    return chain_rows(tokens, FIRST, SEQUENCES, TAIL, further_of(rows)), choices


def check_rows(kernel: ModuleType, rows: int, device: str = "cpu") -> None:
    """Compare rows with PyTorch's, also of tokens that are expanded."""
    tokens = torch.arange(len(FIRST) * rows, device=device).view(-1, rows)
    first, half = EVERY_FIRST.to(device)[::2], torch.tensor([rows // 2], device=device)
    for chain in (tokens, tokens[:, :1].expand(-1, rows)):
        for further in (None, further_of(rows).to(device), half.expand(len(FIRST))):
            found = kernel.launch_rows(chain[:, :1], chain[:, 1:], first, further, TAIL)
            limits = None if further is None else further.cpu()
            step = chain_rows(chain.cpu(), FIRST, SEQUENCES, TAIL, limits)
            expected = step.tokens, step.positions, step.tail
            for tensor, other in zip(found, expected, strict=True):
                assert tensor.is_contiguous() and torch.equal(tensor.cpu(), other)


def check_accept(kernel: ModuleType, rows: int, device: str = "cpu") -> None:
    """Compare counts with what is before the first mismatch of each chain."""
    step, choices = step_of(rows)
    places = (x.to(device) for x in (step.tokens, choices, step.positions))
    found = kernel.launch_accept(*places).tolist()
    matches = (step.tokens[:, 1:] == choices[:, :-1]) & (step.positions[:, 1:] >= 0)
    assert found == [[*row, False].index(False) for row in matches.tolist()]


def check_advance(kernel: ModuleType, rows: int, device: str = "cpu") -> None:
    """Compare the state with PyTorch's; it is written in place, and what is after it is kept."""
    accepted = accept(*step_of(rows))
    expected, whole = advanced(accepted), BatchState(range(len(FIRST) + 1), TAIL, device)
    for tensor in (whole.bonus, whole.position, whole.moves):
        tensor.fill_(7)
    state = whole.narrow(len(FIRST))
    tokens, count = accepted.tokens.to(device), accepted.count.to(device)
    first = step_of(rows)[0].positions.to(device)[:, 0]  # a column of the step's
    kernel.launch_advance(tokens, count, first, state.bonus, state.position, state.moves)
    for name in ("bonus", "position", "moves"):
        found = whole.tensors()[name].cpu()
        assert torch.equal(found[:-1], expected.tensors()[name]) and (found[-1] == 7).all()


def advanced(accepted: Accepted, device: str = "cpu") -> BatchState:
    """Return the state of a batch after an accepted path."""
    batch = BatchState(range(len(FIRST)), TAIL, device)
    batch.moves.fill_(7)
    batch.advance(accepted, scattered=False)
    return batch


def results_of_a_round(rows: int, device: str) -> list[Tensor]:
    """Return the rows, the counts and the state of a round around its forward, on the CPU."""
    step, choices = step_of(rows)
    tokens, first, further, sequences, choices = (
        x.to(device) for x in (step.tokens, FIRST, further_of(rows), SEQUENCES, choices)
    )
    draft, limits = Draft(tokens[:, 1:]), DraftLimits(further, further)
    made = rows_after(tokens[:, :1], first, sequences, draft, TAIL, limits)
    accepted = accept(made, choices)
    state = advanced(accepted, device)
    results = *made.inputs, accepted.count, state.bonus, state.position, state.moves
    return [x.cpu() for x in results]
