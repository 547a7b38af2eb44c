"""The gated delta rule, one token after another.

A state S is a matrix. A token with key k, value v, decay a and rate b makes of it
`a S + k (b (v - a k S))`: it forgets a part, then corrects what the state recalls for k towards v.
A query q reads `q S`. Yang, Kautz and Hatamizadeh, "Gated Delta Networks", arXiv:2412.06464,
equation 10.

Every token is taken in alone and in the same order of arithmetic, so the bits of a state follow
from its tokens, and not from the steps in which they came.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.scan import scan_op


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

    def step(state: Tensor, *token: Tensor) -> States:
        state = take_in(state, RuleInputs(*token[:-1]))
        return state, torch.bmm(token[-1], state)

    final, reads = _scan(step, state, (*tokens, queries))
    return final, reads


def _some_of_a_text(state: Tensor, tokens: RuleInputs, takes: Tensor) -> Tensor:
    """Return `state` [M, K, V] after the tokens that `takes` bool [N] marks."""

    def taken(state: Tensor, *token: Tensor) -> tuple[Tensor]:
        return (take_in(state, RuleInputs(*token)),)

    def skipped(state: Tensor, *token: Tensor) -> tuple[Tensor]:
        return (state.clone(),)

    def step(state: Tensor, *token: Tensor) -> tuple[Tensor]:
        return if_else(token[-1], taken, skipped, (state, *token[:-1]))

    if torch.compiler.is_compiling():
        return _scan(step, state, (*tokens, takes))[0]
    for *token, is_taken in zip(*tokens, takes.tolist(), strict=True):
        state = taken(state, *token)[0] if is_taken else state
    return state


def catch_up(states: Tensor, older: RuleInputs, takes: Tensor) -> Tensor:
    """Return `states` [B, M, K, V] after those of the `older` tokens that `takes` bool [B, N]
    marks."""
    batch = states.shape[0]
    if needs_no_loop(batch):
        texts = [
            _some_of_a_text(states[text], _of_text(older, text), takes[text])
            for text in range(batch)
        ]
        return torch.stack(texts)

    def step(turn: Tensor, state: Tensor, *text: Tensor) -> States:
        return turn + 1, _some_of_a_text(state, RuleInputs(*text[:-1]), text[-1])

    return _scan(step, _turn(states), (states, *older, takes))[1]


def read_chains(states: Tensor, tokens: RuleInputs, queries: Tensor) -> Tensor:
    """Return what `queries` [B, N, M, 1, K] of each of `tokens` read of copies of `states`
    [B, M, K, V] that have taken it in after those before it: [B * N, M, 1, V]."""
    return take_in_and_read(states, tokens, queries)[1].flatten(0, 1)


def read_chains_in_turn(
    states: Tensor, tokens: RuleInputs, queries: Tensor, count: int, most_rows: int
) -> Tensor:
    """Return what `read_chains` does, [count, M, 1, V], in a program for any number of texts.

    They are taken one by one: what a loop changes has a fixed size, and what it collects has a
    fixed size for each of its turns. `count` is B * N, `most_rows` at most.
    """
    rows = torch.arange(count, device=states.device)
    places = rows.view(queries.shape[:2])
    reads = states.new_zeros(most_rows, *queries.shape[2:4], states.shape[-1])

    def step(reads: Tensor, state: Tensor, places: Tensor, *text: Tensor) -> tuple[Tensor]:
        outputs = _all_of_a_text(state, RuleInputs(*text[:-1]), text[-1])[1]
        return (reads.index_copy(0, places, outputs),)

    filled = _scan(step, reads, (states, places, *tokens, queries))[0]
    return filled.index_select(0, rows)


def read_paths(
    states: Tensor, texts: Tensor, tokens: RuleInputs, takes: Tensor, queries: Tensor
) -> Tensor:
    """Return what each row reads of a copy of its text's state after its own path.

    Row r of R continues the text `texts` int64 [R, 1] of `states` [B, M, K, V], by those of its
    `tokens` ([R, N, ...]) that `takes` bool [R, N] marks; `queries` are [R, M, 1, K]. Returns
    [R, M, 1, V]. Each row begins anew, so that it depends on no other one.
    """
    heads = states.shape[1]
    by_head = states.flatten(0, 1)
    numbers = texts * heads + torch.arange(heads, device=texts.device)

    def step(turn: Tensor, query: Tensor, numbers: Tensor, *row: Tensor) -> States:
        *parts, takes, by_head = row
        state = by_head.index_select(0, numbers)  # without a view, which a loop cannot hold
        state = _some_of_a_text(state, RuleInputs(*parts), takes)
        return turn + 1, torch.bmm(query, state)

    rows = queries, numbers, *tokens, takes
    return _scan(step, _turn(states), rows, by_head)[1]


def _turn(like: Tensor) -> Tensor:
    """Return what a loop counts that changes nothing, int64 [1]: it must change something."""
    return torch.zeros(1, dtype=torch.int64, device=like.device)


def needs_no_loop(batch: int) -> bool:
    """Whether texts are taken outside of a loop: one text, or any number without a program."""
    return isinstance(batch, int) and (batch == 1 or not torch.compiler.is_compiling())


def if_else(
    condition: Tensor, one: Callable[..., Any], other: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    """Call `one` with `operands` if the `condition` bool [] is True, else the `other`.

    In a program both return tuples of new tensors and read no tensor but the `operands`.
    """
    if torch.compiler.is_compiling():
        # as functions: a method's own object would count as an operand
        both = (lambda *values: one(*values)), (lambda *values: other(*values))
        return cond_op(condition, *both, tuple(operands))
    return (one if condition else other)(*operands)


def _scan(
    step: Callable[..., tuple[Tensor, ...]], first: Tensor, parts: Sequence[Tensor], *others: Tensor
) -> tuple[Tensor, ...]:
    """Loop over the first dimension of `parts` [N, ...].

    `step` takes what changes, `first` at the beginning, then a part of each and all `others`, and
    reads no other tensor. It returns what changes, and what is collected. Returns the last of what
    changes, then what is collected [N, ...].

    `torch.scan` and `torch.cond` compile each call by Dynamo, which takes most of the time of a
    trace; a program has hundreds of them.
    """
    if torch.compiler.is_compiling():
        found: tuple[Tensor, ...] = scan_op(step, [first], [*parts], others)
        return found
    collected = []
    for part in zip(*parts, strict=True):
        first, *outputs = step(first, *part, *others)
        collected.append(outputs)
    return first, *map(torch.stack, zip(*collected, strict=True))
