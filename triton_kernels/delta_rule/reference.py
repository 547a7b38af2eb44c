"""The gated delta rule in eager PyTorch: the reference and the CPU path.

A token with key k, value v, decay a and rate b makes `a S + k (b (v - a k S))` of a state S, and a
query q reads `q S` (arXiv:2412.06464, equation 10).
"""

import torch
from torch import Tensor


def taken_in(state: Tensor, terms: Tensor, keys: int) -> Tensor:
    """Return `state` [heads, K, V] after a token of `terms` [W], the first `keys` its keys."""
    heads, key_dim, value_dim = state.shape
    sizes = (keys, heads * value_dim, heads, heads)
    key, value, decay, rate = terms.split(sizes)
    key = key.view(-1, key_dim).repeat_interleave(heads * key_dim // keys, 0)
    decay, rate = decay.unsqueeze(1), rate.unsqueeze(1)
    recalled = (key.unsqueeze(1) @ state).squeeze(1)
    correction = (value.view(heads, value_dim) - recalled * decay) * rate
    return state * decay.unsqueeze(1) + key.unsqueeze(2) * correction.unsqueeze(1)


def read(state: Tensor, query: Tensor) -> Tensor:
    """Return what `query` [keys] reads of `state` [heads, K, V]: [heads, V]."""
    heads, key_dim, _ = state.shape
    shared = query.view(-1, key_dim).repeat_interleave(heads * key_dim // len(query), 0)
    return (shared.unsqueeze(1) @ state).squeeze(1)


def _chain(state: Tensor, terms: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    reads = []
    for token, query in zip(terms, queries, strict=True):
        state = taken_in(state, token, len(query))
        reads.append(read(state, query))
    return state, torch.stack(reads)


def step_reference(
    state: Tensor,
    sequences: Tensor,
    first: Tensor,
    stored: Tensor,
    older: Tensor,
    takes: Tensor,
    is_chain: Tensor,
    terms: Tensor,
    queries: Tensor,
    paths: Tensor,
    path_takes: Tensor,
) -> Tensor:
    """Do what `op.delta_rule_step` does: [B * T, heads, V]."""
    texts, tail = takes.shape
    keys, reads = queries.shape[1], []
    rows = queries.shape[0] // texts
    for text, place in enumerate(sequences.tolist()):
        own = torch.where(first[text] == 0, 0.0, state[place])
        for slot in older.view(texts, tail)[text][takes[text]]:
            own = taken_in(own, stored[slot], keys)
        if first[text] >= 0:
            state[place] = own
        span = slice(text * rows, (text + 1) * rows)
        if is_chain:
            reads.append(_chain(own, terms[span], queries[span])[1])
            continue
        for row in range(span.start, span.stop):
            copy = own
            for slot in paths.view(-1, tail)[row][path_takes[row]]:
                copy = taken_in(copy, stored[slot], keys)
            reads.append(read(copy, queries[row]).unsqueeze(0))
    return torch.cat(reads)


def prompt_reference(
    state: Tensor, sequence: Tensor, first: Tensor, terms: Tensor, queries: Tensor
) -> Tensor:
    """Do what `op.delta_rule_prompt` does: [T, heads, V]."""
    own, reads = _chain(torch.where(first == 0, 0.0, state[sequence[0]]), terms, queries)
    state[sequence[0]] = own
    return reads
