"""Checks on the host whether a step that a caller made can be run."""

from itertools import pairwise

from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.decode.step import StepRows


def check_step(step: StepRows, constants: Constants) -> None:
    """Raise SettingError, in one line, unless the artifact can run these rows.

    Refused are wrong shapes, too many rows, sequences that are missing or used twice, positions
    outside the context, tokens outside the vocabulary, two rows in one slot, and a tail that is no
    path. A path's entries are the committed slots of their positions up to the step's first row,
    then rows of the step which share the path.
    """
    check_shapes(step, constants)
    check_sequences(step.sequences.tolist(), constants.max_batch_size)
    low, high = int(step.tokens.min()), int(step.tokens.max())
    if low < 0 or high >= constants.vocab_size:
        raise SettingError(f"tokens {low}..{high} leave the vocabulary of {constants.vocab_size}")
    for index, sequence in enumerate(step.sequences.tolist()):
        rows = zip(step.positions[index].tolist(), step.tail[index].tolist(), strict=True)
        check_paths(sequence, [(p, tail) for p, tail in rows if p >= 0], constants)


def check_shapes(step: StepRows, constants: Constants) -> None:
    """Raise SettingError unless the tensors are those of one step within the limits."""
    batch, rows = step.tokens.shape
    shapes = {
        "positions": (step.positions, (batch, rows)),
        "sequences": (step.sequences, (batch,)),
        "tail": (step.tail, (batch, rows, constants.tail)),
    }
    for name, (tensor, shape) in shapes.items():
        check_shape(name, tensor, shape)
    if not 1 <= batch * rows <= constants.max_rows:
        raise SettingError(
            f"a step of {batch} x {rows} rows: this artifact takes 1 to {constants.max_rows}"
        )


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise SettingError unless `tensor` is an int64 tensor of `shape`, such as [B, T]."""
    if tuple(tensor.shape) != shape or tensor.is_floating_point():
        raise SettingError(
            f"{name} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}, "
            f"not int64 {list(shape)}"
        )


def check_sequences(sequences: list[int], available: int) -> None:
    """Raise SettingError for a sequence that is missing or used twice."""
    for sequence in sequences:
        if not 0 <= sequence < available:
            raise SettingError(
                f"sequence {sequence}: this artifact has {available}, from 0 on: export with a "
                "larger --max-batch-size"
            )
        if sequences.count(sequence) > 1:
            raise SettingError(f"sequence {sequence} is used twice in a step")


def check_paths(sequence: int, rows: list[tuple[int, list[int]]], constants: Constants) -> None:
    """Raise SettingError unless the tails of a sequence's rows are paths.

    `rows` are positions and tails, without padding.
    """
    by_slot: dict[int, tuple[int, list[int]]] = {}
    for position, tail in rows:
        if position >= constants.max_seq_len + constants.tail:
            raise SettingError(
                f"position {position} is beyond the context of {constants.max_seq_len}"
            )
        if tail[-1] in by_slot:
            raise SettingError(f"sequence {sequence}: two rows lie in slot {tail[-1]}")
        by_slot[tail[-1]] = position, tail
    first = min((position for position, _ in rows), default=0)
    for position, tail in rows:
        if reason := not_a_path(position, tail, by_slot, first, constants.flat_slots):
            raise SettingError(
                f"sequence {sequence}: the tail of the row at {position} is not a path: {reason}"
            )


def not_a_path(
    position: int,
    tail: list[int],
    by_slot: dict[int, tuple[int, list[int]]],
    first: int,
    slots: int,
) -> str:
    """Return what is wrong with a tail, or an empty text.

    `by_slot` are the step's rows of this sequence, the earliest at position `first`.
    """
    start = position - len(tail) + 1
    for expected, slot in enumerate(tail, start=start):
        if expected < 0:
            if slot != -1:
                return f"slot {slot} is before the text's beginning"
        elif not 0 <= slot < slots:
            return f"slot {slot} at position {expected}"
        elif expected < first and slot != expected:
            return f"slot {slot} at position {expected}, whose slot is committed"
        elif expected >= first and (slot not in by_slot or by_slot[slot][0] != expected):
            return f"slot {slot} holds no row at position {expected}"
    path = [slot for position, slot in enumerate(tail, start=start) if position >= first]
    for parent, child in pairwise(path):
        if by_slot[child][1][-2] != parent:
            return f"slot {child} does not follow slot {parent}"
    return ""
