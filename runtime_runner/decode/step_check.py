"""Whether a step that somebody else made can be run: on the host, before anything is."""

from itertools import pairwise

from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.decode.step import StepRows


def check_step(step: StepRows, constants: Constants) -> None:
    """Raise SettingError, one line, unless the artifact can run these rows.

    Refused are other shapes, more rows than a step takes, sequences that the artifact does not have
    or that come twice, positions outside the context, tokens outside the vocabulary, two rows in
    one slot, and a tail that is no path: one whose entries are not the committed slots of their
    positions, up to where the step's own rows begin, and from there on rows of the step, each with
    the same path.
    """
    check_shapes(step, constants)
    check_sequences(step.sequences.tolist(), constants.max_batch_size)
    low, high = int(step.tokens.min()), int(step.tokens.max())
    if low < 0 or high >= constants.vocab_size:
        raise SettingError(f"tokens {low}..{high} leave the vocabulary of {constants.vocab_size}")
    for place, sequence in enumerate(step.sequences.tolist()):
        rows = zip(step.positions[place].tolist(), step.tail[place].tolist(), strict=True)
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
    """Raise SettingError for another shape or another dtype than int64."""
    if tuple(tensor.shape) != shape or tensor.is_floating_point():
        raise SettingError(
            f"{name} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}, "
            f"not int64 {list(shape)}"
        )


def check_sequences(sequences: list[int], available: int) -> None:
    """Raise SettingError for a cache that there is not, or that is used twice."""
    for sequence in sequences:
        if not 0 <= sequence < available:
            raise SettingError(
                f"sequence {sequence}: this artifact has {available}, from 0 on: export with a "
                "larger --max-batch-size"
            )
        if sequences.count(sequence) > 1:
            raise SettingError(f"sequence {sequence} is used twice in a step")


def check_paths(sequence: int, rows: list[tuple[int, list[int]]], constants: Constants) -> None:
    """Raise SettingError unless the tails of a sequence's rows, padding left out, are paths.

    `rows` are positions and tails.
    """
    own: dict[int, tuple[int, list[int]]] = {}
    for position, tail in rows:
        if position >= constants.max_seq_len + constants.tail:
            raise SettingError(
                f"position {position} is beyond the context of {constants.max_seq_len}"
            )
        if tail[-1] in own:
            raise SettingError(f"sequence {sequence}: two rows lie in slot {tail[-1]}")
        own[tail[-1]] = position, tail
    first = min((position for position, _ in rows), default=0)
    for position, tail in rows:
        if reason := not_a_path(position, tail, own, first, constants.flat_slots):
            raise SettingError(
                f"sequence {sequence}: the tail of the row at {position} is not a path: {reason}"
            )


def not_a_path(
    position: int,
    tail: list[int],
    own: dict[int, tuple[int, list[int]]],
    first: int,
    slots: int,
) -> str:
    """What is wrong with a tail; empty where nothing is.

    `own` are the step's rows of this sequence by slot, of which the earliest stands at `first`.
    """
    start = position - len(tail) + 1
    for place, slot in enumerate(tail, start=start):
        if place < 0:
            if slot != -1:
                return f"slot {slot} stands before the text's beginning"
        elif not 0 <= slot < slots:
            return f"slot {slot} at position {place}"
        elif place < first and slot != place:
            return f"slot {slot} at position {place}, which is committed to its own"
        elif place >= first and (slot not in own or own[slot][0] != place):
            return f"slot {slot} holds no row at position {place}"
    path = [slot for place, slot in enumerate(tail, start=start) if place >= first]
    for parent, child in pairwise(path):
        if own[child][1][-2] != parent:
            return f"slot {child} does not follow slot {parent}"
    return ""
