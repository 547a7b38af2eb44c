"""Log probabilities of the chosen tokens, and of the likeliest tokens at the same positions."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eagle_aot.common.tensors import arange_cached
from eagle_aot.runtime_runner.sampling.parameters import MAX_LOGPROBS
from eagle_aot.runtime_runner.sampling.thresholds import SCALE_BITS, order_of, weights_of


class TokenLogprobs(NamedTuple):
    """The log probability of one token of a text, as a natural logarithm.

    `top` are the ids and log probabilities of the likeliest tokens at its position, the likeliest
    first, and of equal ones the lower id first. `logprob` is None, and `top` empty, for a prompt's
    first token. The token's text begins `offset` characters after the beginning of the text; it is
    None without a tokenizer.
    """

    id: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()
    offset: int | None = None

    def first(self, count: int) -> "TokenLogprobs":
        """Return it with only the first `count` of the likeliest tokens."""
        return self._replace(top=self.top[:count])

    def to_json(self) -> dict[str, Any]:
        """Return the object in a line of `eagle-run --json`."""
        top = [{"id": token, "logprob": logprob} for token, logprob in self.top]
        return {"id": self.id, "logprob": self.logprob, "top": top, "offset": self.offset}


def pack_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return log probabilities as integers, which `unpack_logprobs` reads on the host.

    `tokens` int64 [B, P] were chosen from `logits` float32 [B, P, V]. Returns int64 [B, P * W]: for
    each position the ids of the token and the likeliest ones, then the bits of their logarithms.
    No row's bits depend on another row.
    """
    ids = torch.cat((tokens.unsqueeze(-1), likeliest(logits)), dim=-1)
    bits = log_softmax_of(logits, ids).view(torch.int32)
    return torch.cat((ids, bits.long()), dim=-1).flatten(1)


def likeliest(logits: Tensor) -> Tensor:
    """Return the ids of the `MAX_LOGPROBS` largest of float32 [..., V], or of all: int64 [..., N].

    Logit and id are packed into one integer, so that no two are equal.
    """
    vocab = logits.shape[-1]
    descending = arange_cached(0, vocab, logits.device).flip(0)  # the lowest id is the largest
    both = order_of(logits).long() << 32 | descending
    return vocab - 1 - (both.topk(min(MAX_LOGPROBS, vocab)).values & 0xFFFFFFFF)


def log_softmax_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log softmax of float32 [..., V] at `ids` int64 [..., N]: float32 [..., N].

    The sum adds integers, which is exact in any order.
    """
    total = weights_of(logits).sum(dim=-1, keepdim=True).double() * 2.0**-SCALE_BITS
    distance = logits.gather(-1, ids).double() - logits.amax(dim=-1, keepdim=True)
    return (distance - total.log()).float()


def unpack_logprobs(packed: Tensor, positions: int) -> list[list[TokenLogprobs]]:
    """Read what `pack_logprobs` returned for B sequences and `positions` positions, int64
    [B, P * W]. Tokens that cannot be chosen are left out of `top`."""
    ids, bits = packed.cpu().unflatten(1, (positions, 2, -1)).unbind(2)
    sequences = zip(ids.tolist(), bits.int().view(torch.float32).tolist(), strict=True)
    return [[_read(*row) for row in zip(*rows, strict=True)] for rows in sequences]


def _read(ids: Sequence[int], logprobs: Sequence[float]) -> TokenLogprobs:
    (token, logprob), *top = zip(ids, logprobs, strict=True)
    return TokenLogprobs(token, logprob, [pair for pair in top if pair[1] > -math.inf])
