"""Prompts of a gated delta rule on a GPU, by blocks of `BLOCK` tokens.

Within a block the corrections u of all tokens solve a triangular system, so that a state is read
and written once a block (arXiv:2412.06464, section 3.3): with cumulative decays g and the ratios
g_t / g_i, (I + L) U = b (V - g K S), where L_ti = b_t g_t / g_i k_t k_i for i < t. A first kernel
inverts I + L for all blocks at once; a second one takes the blocks into a state, one after another.
So the bits of a row do not depend on where a prompt is cut between blocks. Importing this module
needs triton.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

BLOCK = 32
SOLVE_WARPS, PART = 2, 32
COLUMNS, WARPS = 16, 2
LEAST_DECAY = 1e-38
"""A decay of zero would make 0 / 0 of two ratios; the square of this one is zero all the same."""


@triton.jit
def solve_blocks_kernel(
    terms_ptr: tl.tensor,
    queries_ptr: tl.tensor,
    recalls_ptr: tl.tensor,
    values_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    decays_ptr: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """Solve one block of one head.

    Writes what the corrections subtract of a state, recalls [BLOCK, K], and what they add, values
    [BLOCK, V]; the weights of corrections in what queries read [BLOCK, BLOCK]; and the logarithms
    of the cumulative decays [BLOCK].
    """
    KEYS: tl.constexpr = HEADS // GROUP * K
    WIDTH: tl.constexpr = KEYS + HEADS * V + 2 * HEADS
    block, head = tl.program_id(0), tl.program_id(1)
    t = tl.arange(0, BLOCK)
    rows = block.to(tl.int64) * BLOCK + t
    row = rows[:, None]
    part = tl.arange(0, PART)[None, :]
    keys = terms_ptr + row * WIDTH + head // GROUP * K + part
    queries = queries_ptr + row * KEYS + head // GROUP * K + part
    alike, weights = tl.zeros((BLOCK, BLOCK), tl.float32), tl.zeros((BLOCK, BLOCK), tl.float32)
    for column in range(0, K, PART):
        k = tl.trans(tl.load(keys + column))
        alike = tl.dot(tl.load(keys + column), k, alike, input_precision="tf32x3")
        weights = tl.dot(tl.load(queries + column), k, weights, input_precision="tf32x3")
    gates = terms_ptr + rows * WIDTH + KEYS + HEADS * V + head
    logs = tl.cumsum(tl.log(tl.maximum(tl.load(gates), LEAST)), 0).to(tl.float32)
    rate = tl.load(gates + HEADS)
    ratio = tl.exp(tl.minimum(logs[:, None] - logs[None, :], 0.0))
    lower = t[:, None] > t[None, :]
    inverse = tl.where(lower, -alike * ratio * rate[:, None], 0.0)
    for i in range(1, BLOCK):
        own = tl.sum(tl.where(t[:, None] == i, inverse, 0.0), 0)
        own += tl.sum(own[:, None] * inverse, 0)
        inverse = tl.where(t[:, None] == i, own[None, :], inverse)
    inverse += tl.where(t[:, None] == t[None, :], 1.0, 0.0)
    item = (block * HEADS + head).to(tl.int64) * BLOCK + t
    for column in range(0, K, PART):
        k = tl.load(keys + column) * (rate * tl.exp(logs))[:, None]
        recalls = tl.dot(inverse, k, input_precision="tf32x3")
        tl.store(recalls_ptr + item[:, None] * K + column + part, recalls)
    given = terms_ptr + row * WIDTH + KEYS + head * V + part
    for column in range(0, V, PART):
        v = tl.load(given + column) * rate[:, None]
        values = tl.dot(inverse, v, input_precision="tf32x3")
        tl.store(values_ptr + item[:, None] * V + column + part, values)
    weights = tl.where(t[:, None] >= t[None, :], weights * ratio, 0.0)
    tl.store(weights_ptr + item[:, None] * BLOCK + t[None, :], weights)
    tl.store(decays_ptr + item, logs)


@triton.jit(do_not_specialize=["blocks"])
def take_in_blocks_kernel(
    state_ptr: tl.tensor,
    sequence_ptr: tl.tensor,
    first_ptr: tl.tensor,
    terms_ptr: tl.tensor,
    queries_ptr: tl.tensor,
    recalls_ptr: tl.tensor,
    values_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    decays_ptr: tl.tensor,
    out_ptr: tl.tensor,
    blocks: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Take all blocks into some columns of a head's state, and read it after each token."""
    KEYS: tl.constexpr = HEADS // GROUP * K
    WIDTH: tl.constexpr = KEYS + HEADS * V + 2 * HEADS
    head = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sequence, first = tl.load(sequence_ptr).to(tl.int64), tl.load(first_ptr)
    at = (sequence * HEADS + head) * K * V + tl.arange(0, K)[:, None] * V + column[None, :]
    state = tl.load(state_ptr + at, mask=(first != 0) & (at >= 0), other=0.0)
    t, key_column = tl.arange(0, BLOCK), head // GROUP * K + tl.arange(0, K)[None, :]
    for block in range(blocks):
        row = tl.full((), block, tl.int64) * BLOCK + t
        item = (block * HEADS + head).to(tl.int64) * BLOCK + t
        logs = tl.load(decays_ptr + item)
        recalls = tl.load(recalls_ptr + item[:, None] * K + tl.arange(0, K)[None, :])
        u = tl.load(values_ptr + item[:, None] * V + column[None, :])
        u -= tl.dot(recalls, state, input_precision="tf32x3")
        q = tl.load(queries_ptr + row[:, None] * KEYS + key_column) * tl.exp(logs)[:, None]
        weights = tl.load(weights_ptr + item[:, None] * BLOCK + t[None, :])
        read = tl.dot(q, state, input_precision="tf32x3")
        read += tl.dot(weights, u, input_precision="tf32x3")
        tl.store(out_ptr + (row[:, None] * HEADS + head) * V + column[None, :], read)
        last = tl.sum(tl.where(t == BLOCK - 1, logs, 0.0), 0)
        k = tl.load(terms_ptr + row[:, None] * WIDTH + key_column) * tl.exp(last - logs)[:, None]
        state = state * tl.exp(last) + tl.dot(tl.trans(k), u, input_precision="tf32x3")
    tl.store(state_ptr + at, state)


def launch_prompt(
    state: Tensor, sequence: Tensor, first: Tensor, terms: Tensor, queries: Tensor
) -> Tensor:
    """Launch both kernels; arguments and result are those of `op.delta_rule_prompt`,
    [T, heads, V]. T is a multiple of `BLOCK`."""
    _, heads, key_dim, value_dim = state.shape
    rows, blocks = queries.shape[0], queries.shape[0] // BLOCK
    terms, queries = terms.contiguous(), queries.contiguous()
    out = queries.new_empty((rows, heads, value_dim))
    items = blocks, heads, BLOCK
    recalls, values = queries.new_empty((*items, key_dim)), queries.new_empty((*items, value_dim))
    weights, decays = queries.new_empty((*items, BLOCK)), queries.new_empty(items)
    sizes = {"HEADS": heads, "GROUP": heads * key_dim // queries.shape[1], "K": key_dim}
    sizes |= {"V": value_dim, "BLOCK": BLOCK}
    solved = recalls, values, weights, decays
    wrap_triton(solve_blocks_kernel)[(blocks, heads)](
        terms, queries, *solved, PART=min(PART, key_dim, value_dim),
        LEAST=LEAST_DECAY, num_warps=SOLVE_WARPS, num_stages=1, **sizes,
    )  # fmt: skip
    columns = min(COLUMNS, value_dim)
    wrap_triton(take_in_blocks_kernel)[(heads, value_dim // columns)](
        state, sequence, first, terms, queries, *solved, out, blocks,
        COLUMNS=columns, num_warps=WARPS, num_stages=1, **sizes,
    )  # fmt: skip
    return out
