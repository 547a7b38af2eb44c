"""Steps of the gated delta rule on a GPU: a program for some columns of one state.

Columns of a state do not mix, so a program keeps its columns in registers while tokens come.
Chains and trees share `taken_in`, the tile and the warps, and so the order of every sum: the bits
of a state follow from its tokens alone. Importing this module needs triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

COLUMNS, WARPS = 32, 4


@triton.jit
def taken_in(
    state: tl.tensor,
    terms_ptr: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    column: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
) -> tl.tensor:
    """Return state [K, columns] after the token whose terms are row `row`: keys of HEADS / GROUP
    heads, values, decays and rates."""
    KEYS: tl.constexpr = HEADS // GROUP * K
    terms = terms_ptr + row * (KEYS + HEADS * V + 2 * HEADS)
    key = tl.load(terms + head // GROUP * K + tl.arange(0, K))[:, None]
    value = tl.load(terms + KEYS + head * V + column)
    decay = tl.load(terms + KEYS + HEADS * V + head)
    rate = tl.load(terms + KEYS + HEADS * V + HEADS + head)
    recalled = tl.sum(key * state, 0)
    correction = tl.fma(-recalled, decay, value) * rate
    return tl.fma(key, correction[None, :], state * decay)  # else a compiler may round otherwise


@triton.jit
def store_read(
    state: tl.tensor,
    queries_ptr: tl.tensor,
    out_ptr: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    column: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
) -> None:
    """Write what the query of row `row` reads of state [K, columns]."""
    query = queries_ptr + row * (HEADS // GROUP * K) + head // GROUP * K + tl.arange(0, K)
    read = tl.sum(tl.load(query)[:, None] * state, 0)
    tl.store(out_ptr + (row * HEADS + head) * V + column, read)


@triton.jit(do_not_specialize=["rows"])
def delta_rule_texts_kernel(
    state_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    first_ptr: tl.tensor,
    stored_ptr: tl.tensor,
    older_ptr: tl.tensor,
    takes_ptr: tl.tensor,
    is_chain_ptr: tl.tensor,
    terms_ptr: tl.tensor,
    queries_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    TAIL: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Bring a text's state up to its row 0, keep it, and read it for all rows of a chain."""
    text, head = tl.program_id(0), tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    sequence = tl.load(sequences_ptr + text).to(tl.int64)
    first = tl.load(first_ptr + text)
    at = (sequence * HEADS + head) * K * V + tl.arange(0, K)[:, None] * V + column[None, :]
    state = tl.load(state_ptr + at, mask=(first != 0) & (at >= 0), other=0.0)
    for token in range(TAIL):
        if tl.load(takes_ptr + text * TAIL + token):
            slot = tl.load(older_ptr + text * TAIL + token).to(tl.int64)
            state = taken_in(state, stored_ptr, slot, head, column, HEADS, GROUP, K, V)
    tl.store(state_ptr + at, state, mask=(first >= 0) & (at >= 0))
    for number in range(tl.where(tl.load(is_chain_ptr), rows, 0)):
        row = text.to(tl.int64) * rows + number
        state = taken_in(state, terms_ptr, row, head, column, HEADS, GROUP, K, V)
        store_read(state, queries_ptr, out_ptr, row, head, column, HEADS, GROUP, K, V)


@triton.jit(do_not_specialize=["rows"])
def delta_rule_paths_kernel(
    state_ptr: tl.tensor,
    sequences_ptr: tl.tensor,
    stored_ptr: tl.tensor,
    paths_ptr: tl.tensor,
    takes_ptr: tl.tensor,
    is_chain_ptr: tl.tensor,
    queries_ptr: tl.tensor,
    out_ptr: tl.tensor,
    rows: tl.tensor,
    TAIL: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Read, for one row, a copy of its text's state that takes in the row's own path. Rows of
    chains have been read."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(is_chain_ptr) == 0:
        column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        sequence = tl.load(sequences_ptr + row // rows).to(tl.int64)
        at = (sequence * HEADS + head) * K * V + tl.arange(0, K)[:, None] * V + column[None, :]
        state = tl.load(state_ptr + at)
        for token in range(TAIL):
            if tl.load(takes_ptr + row * TAIL + token):
                slot = tl.load(paths_ptr + row * TAIL + token).to(tl.int64)
                state = taken_in(state, stored_ptr, slot, head, column, HEADS, GROUP, K, V)
        store_read(state, queries_ptr, out_ptr, row, head, column, HEADS, GROUP, K, V)


def launch_step(
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
    """Launch both kernels; arguments and result are those of `op.delta_rule_step`,
    [B * T, heads, V]."""
    _, heads, key_dim, value_dim = state.shape
    (texts, tail), columns = takes.shape, min(COLUMNS, value_dim)
    rows, blocks = queries.shape[0] // texts, value_dim // columns
    sizes = {"HEADS": heads, "GROUP": heads * key_dim // queries.shape[1], "K": key_dim}
    sizes |= {"V": value_dim, "COLUMNS": columns, "TAIL": tail, "num_warps": WARPS}
    out = queries.new_empty((queries.shape[0], heads, value_dim), dtype=torch.float32)
    queries = queries.contiguous()
    wrap_triton(delta_rule_texts_kernel)[(texts, heads, blocks)](
        state, sequences.contiguous(), first.contiguous(), stored, older.contiguous(),
        takes.contiguous(), is_chain, terms.contiguous(), queries, out, rows, **sizes,
    )  # fmt: skip
    wrap_triton(delta_rule_paths_kernel)[(queries.shape[0], heads, blocks)](
        state, sequences.contiguous(), stored, paths.contiguous(), path_takes.contiguous(),
        is_chain, queries, out, rows, **sizes,
    )  # fmt: skip
    return out
