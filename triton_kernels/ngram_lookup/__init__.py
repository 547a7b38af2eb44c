"""What followed the last tokens of a text at their latest earlier occurrence, on any device.

Neither importing nor running this package needs triton: if kernels cannot be launched, PyTorch's
own operators do the same, more slowly.
"""

import torch
from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.triton_kernels.device import launches_kernels

LONGEST = 3
"""Maximum number of last tokens that are looked up."""


def continuations(tokens: Tensor, sequences: Tensor, last: Tensor, count: int) -> Tensor:
    """Return what followed the latest longest match of the last `LONGEST` tokens, int64 [B, count].

    Row `sequences[b]` of `tokens` int64 [S, columns] is known up to the position `last[b]`, both
    int64 [B], negative for padding: the token at position p is in column p + `LONGEST` - 1. Beyond
    the end of the text it continues with what was copied. A token that did not occur before is
    repeated.
    """
    if tokens.device.type == "cpu" or not launches_kernels():
        return continuations_reference(tokens, sequences, last, count)
    from eagle_aot.triton_kernels.ngram_lookup.kernel import launch

    return launch(tokens, sequences, last, count)


def continuations_reference(tokens: Tensor, sequences: Tensor, last: Tensor, count: int) -> Tensor:
    """Return what `continuations` returns, [B, count]."""
    own = tokens.index_select(0, sequences)
    end = last.unsqueeze(1).clamp(min=1)  # padding has a continuation as well
    earlier = lookup(own, end)
    offsets = arange_cached(0, count, tokens.device) % (end - earlier)
    return own[:, LONGEST:].gather(1, earlier + offsets)


def lookup(tokens: Tensor, last: Tensor) -> Tensor:
    """Return the latest position before `last` that ends a longest match of the last tokens.

    `tokens` int64 [B, columns] are known up to the positions `last` int64 [B, P], from 1 on.
    Returns int64 [B, P]: `last - 1` if the token at `last` did not occur before.

    Of positions without a match `last - 1` has the largest number, so it needs no case of its own.
    """
    windows = tokens.unfold(1, LONGEST, 1)  # [B, positions, LONGEST]
    positions = windows.shape[1]
    columns = last.unsqueeze(-1) + arange_cached(0, LONGEST, tokens.device)
    query = tokens.gather(1, columns.flatten(1)).view(*last.shape, 1, LONGEST)
    same = (windows.unsqueeze(1) == query).view(torch.int8)
    length = same[..., 0]  # [B, P, positions]
    for following in same[..., 1:].unbind(-1):
        length = following * (length + 1)
    ends = arange_cached(0, positions, tokens.device)
    by_length = torch.add(ends, length, alpha=positions)
    best = (by_length * (ends < last.unsqueeze(-1))).amax(dim=-1)
    return best % positions
