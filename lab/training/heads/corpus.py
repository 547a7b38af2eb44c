"""Texts as token rows, and batches of them, built on the device that trains.

B rows in a batch, T columns. One row is a prompt and the answer to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Rows are padded to a multiple of this, so that only a few shapes ever occur.
LENGTH_STEP = 16
# Heads draft answers; a little weight on questions lets them draft other text as well.
QUESTION_WEIGHT = 0.05


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens` int64 [B, T], right-padded; `answer`, `valid` bool [B, T].

    `valid` marks what is not padding, `answer` the model's own tokens, the end of turn included.
    `number` says how many batches of a training came before.
    """

    tokens: Tensor
    answer: Tensor
    valid: Tensor
    number: int = 0

    @property
    def weights(self) -> Tensor:
        """What each token weighs in a loss, float32 [B, T]: 0 for padding."""
        return (self.valid * QUESTION_WEIGHT).masked_fill(self.answer, 1.0)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token rows, one after the other.

    `flat`, integers [sum of lengths], lies on the training device; `lengths` and `answer_starts`
    int64 [rows] stay on the host, so that making a batch never waits for the device.
    """

    flat: Tensor
    lengths: Tensor
    answer_starts: Tensor
    offsets: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", self.lengths.cumsum(0) - self.lengths)

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[list[int], int]], device: torch.device) -> "Corpus":
        """Make a corpus of (token row, index where the answer starts) pairs."""
        flat = torch.tensor([token for ids, _ in rows for token in ids], dtype=torch.int32)
        lengths = torch.tensor([len(ids) for ids, _ in rows], dtype=torch.int64)
        starts = torch.tensor([start for _, start in rows], dtype=torch.int64)
        return cls(flat.to(device), lengths, starts)

    def batches(self, tokens_per_batch: int, seed: int, first: int = 0) -> Iterator[Batch]:
        """Yield batches without end, epoch after epoch, in random order, skipping the `first` ones.

        Rows of one batch have about the same length; padding counts towards `tokens_per_batch`.
        """
        generator = torch.Generator().manual_seed(seed)
        groups, number = self._groups(tokens_per_batch), first
        while True:
            order = torch.randperm(len(groups), generator=generator).tolist()
            for i in order[first:]:
                yield self.batch(groups[i], number)
                number += 1
            first = max(0, first - len(groups))

    def batch(self, rows: Tensor, number: int = 0) -> Batch:
        """Return the rows int64 [B] as one batch, on the device of `flat`."""
        device = self.flat.device
        spans = torch.stack((self.offsets[rows], self.lengths[rows], self.answer_starts[rows]))
        offsets, lengths, starts = spans.to(device, non_blocking=True).unsqueeze(-1)
        column = torch.arange(_padded(int(self.lengths[rows].max())), device=device)
        valid = column < lengths
        # Padding is id 0, and padding columns may point past the end.
        index = (offsets + column).clamp(max=len(self.flat) - 1)
        tokens = self.flat[index].long() * valid
        return Batch(tokens, valid & (column >= starts), valid, number)

    def token_counts(self, vocab_size: int) -> Tensor:
        """Return how often each token occurs anywhere, int64 [vocab_size] on the host."""
        return torch.bincount(self.flat, minlength=vocab_size).cpu()

    def answer_counts(self, vocab_size: int) -> Tensor:
        """Return how often each token occurs in the answers, int64 [vocab_size] on the host."""
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        flat = self.flat.cpu()
        for rows in torch.arange(len(self.lengths)).split(ROWS_TO_COUNT):
            lengths, first = self.lengths[rows], int(self.offsets[rows[0]])
            column = torch.arange(int(lengths.sum())) + first
            since = column - self.offsets[rows].repeat_interleave(lengths)
            answers = flat[column][since >= self.answer_starts[rows].repeat_interleave(lengths)]
            counts += torch.bincount(answers.long(), minlength=vocab_size)
        return counts

    def _groups(self, tokens_per_batch: int) -> list[Tensor]:
        """Split the rows, shortest first, into groups that fill a batch: int64 [B] each."""
        by_length = self.lengths.argsort(stable=True)
        groups, first = [], 0
        while first < len(by_length):
            rows = by_length[
                first : first + max(1, tokens_per_batch // int(self.lengths[by_length[first]]))
            ]
            # Rows ascend in length, so the last one bounds the width of any part of them.
            rows = rows[: max(1, tokens_per_batch // _padded(int(self.lengths[rows[-1]])))]
            groups.append(rows)
            first += len(rows)
        return groups


ROWS_TO_COUNT = 65_536
"""Rows that are counted at once, so that counting takes little memory."""


def _padded(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def shift(x: Tensor, by: int) -> Tensor:
    """Return `x` [B, T, ...] moved to the front by `by` entries, with zeros at the end."""
    shifted = torch.zeros_like(x)
    shifted[:, : x.shape[1] - by] = x[:, by:]
    return shifted
