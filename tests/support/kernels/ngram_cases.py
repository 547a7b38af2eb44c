"""Texts that repeat themselves, for tests of what followed their last tokens."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eagle_aot.runtime_runner.drafters.ngram import LONGEST, continuations_reference

LENGTHS = [2, 3, 5, 31, 32, 33, 64, 100]


def check(
    continuations: Callable[[Tensor, Tensor, Tensor, int], Tensor],
    lengths: Sequence[int],
    device: str = "cpu",
) -> None:
    """Compare with the reference, for texts of these lengths and padding in one batch."""
    columns = max(lengths) + LONGEST + 20
    for few in (1, 2, 3, 50):
        generator = torch.Generator().manual_seed(few)
        tokens = torch.randint(few, (len(lengths) + 1, columns), generator=generator)
        tokens[:, :LONGEST] = -1
        sequences = torch.randperm(len(lengths) + 1, generator=generator)
        last = torch.tensor([*lengths, 0])[sequences] - 1
        for count in (1, 4, 15):
            on_device = tokens.to(device), sequences.to(device), last.to(device)
            found = continuations(*on_device, count).cpu()
            assert torch.equal(found, continuations_reference(tokens, sequences, last, count))
