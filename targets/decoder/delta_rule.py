"""The gated delta rule, one token after another.

A state S is a matrix. A token with key k, value v, decay a and rate b makes of it
`a S + k (b (v - a k S))`: it forgets a part, then corrects what the state recalls for k towards v.
A query q reads `q S`. Yang, Kautz and Hatamizadeh, "Gated Delta Networks", arXiv:2412.06464,
equation 10.

Every token is taken in alone and in the same order of arithmetic, so the bits of a state follow
from its tokens, and not from the steps in which they came.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.cond import cond
from torch._higher_order_ops.scan import scan


class RuleInputs(NamedTuple):
    """What the M states of each of B texts take in of N tokens: keys, as `rows` [B, N, M, 1, K] and
    `columns` [B, N, M, K, 1], `values` [B, N, M, 1, V], `decays` and `rates` [B, N, M, 1, 1].

    For one text B is left out, for one token N as well.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor
    decays: Tensor
    rates: Tensor


States = tuple[Tensor, Tensor]
"""States [B, M, K, V], and what queries read of them [B, N, M, 1, V]."""


def take_in(state: Tensor, token: RuleInputs) -> Tensor:
    """Return `state` [M, K, V] after one token."""
    recalled = torch.bmm(token.rows, state) * token.decays
    correction = (token.values - recalled) * token.rates
    # A product with one term: ExecuTorch's multiplication takes several times longer to repeat both
    # factors. The bits are the same.
    return state * token.decays + torch.bmm(token.columns, correction)


def take_in_and_read(states: Tensor, tokens: RuleInputs, queries: Tensor) -> States:
    """Return `states` [B, M, K, V] after all tokens, and what the query of each, of `queries`
    [B, N, M, 1, K], then reads [B, N, M, 1, V]."""
    texts = [
        _all_of_a_text(states[text], _of_text(tokens, text), queries[text])
        for text in range(states.shape[0])
    ]
    return torch.stack([state for state, _ in texts]), torch.stack([reads for _, reads in texts])


def _of_text(tokens: RuleInputs, text: int) -> RuleInputs:
    """Return the tokens of one of several texts."""
    return RuleInputs(*(part[text] for part in tokens))


def _all_of_a_text(state: Tensor, tokens: RuleInputs, queries: Tensor) -> States:
    """Return `state` [M, K, V] after all tokens, and what `queries` [N, M, 1, K] read."""

    def combine(state: Tensor, token: tuple[Tensor, ...]) -> States:
        state = take_in(state, RuleInputs(*token[:-1]))
        return state, torch.bmm(token[-1], state)

    if torch.compiler.is_compiling():
        final, reads = scan(combine, state, (*tokens, queries))
        return final, reads
    outputs = []
    for token in zip(*tokens, queries, strict=True):
        state, output = combine(state, token)
        outputs.append(output)
    return state, torch.stack(outputs)


def _some_of_a_text(state: Tensor, tokens: RuleInputs, takes: Tensor) -> Tensor:
    """Return `state` [M, K, V] after the tokens that `takes` bool [N] marks."""

    def taken(state: Tensor, *token: Tensor) -> Tensor:
        return take_in(state, RuleInputs(*token))

    def skipped(state: Tensor, *token: Tensor) -> Tensor:
        return state.clone()

    def combine(state: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, tuple[()]]:
        return cond(token[-1], taken, skipped, (state, *token[:-1])), ()

    if torch.compiler.is_compiling():
        final: Tensor = scan(combine, state, (*tokens, takes))[0]
        return final
    for *token, is_taken in zip(*tokens, takes.tolist(), strict=True):
        state = taken(state, *token) if is_taken else state
    return state


def catch_up_and_read(
    states: Tensor,
    older: RuleInputs,
    takes: Tensor,
    tokens: RuleInputs,
    queries: Tensor,
    most_rows: int,
) -> States:
    """Return `states` [B, M, K, V] after those of the `older` tokens that `takes` bool [B, N']
    marks, and what `queries` [B, N, M, 1, K] read [B, N, M, 1, V] after `tokens` as well.

    There are `most_rows` queries at most.
    """
    batch, count = queries.shape[:2]
    if isinstance(batch, int) and (batch == 1 or not torch.compiler.is_compiling()):
        kept = torch.stack(
            [
                _some_of_a_text(states[text], _of_text(older, text), takes[text])
                for text in range(batch)
            ]
        )
        return kept, take_in_and_read(kept, tokens, queries)[1]
    # In a program, texts are taken one by one: what a loop changes has a fixed size, and what it
    # collects has a fixed size for each of its turns.
    places = torch.arange(batch * count, device=states.device).view(batch, count)
    reads = states.new_zeros(most_rows, *queries.shape[2:4], states.shape[-1])

    def combine(reads: Tensor, text: tuple[Tensor, ...]) -> States:
        state, places, *parts, takes, queries = text
        kept = _some_of_a_text(state, RuleInputs(*parts[:5]), takes)
        outputs = _all_of_a_text(kept, RuleInputs(*parts[5:]), queries)[1]
        return reads.index_copy(0, places, outputs), kept

    reads, kept_states = scan(combine, reads, (states, places, *older, *tokens, takes, queries))
    used = reads.index_select(0, places.flatten())
    return kept_states, used.view(batch, count, *reads.shape[1:])
