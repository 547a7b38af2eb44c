"""The attention kernels in Triton's interpreter, on a CPU: run by `test_interpreted.py`."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.triton_kernels.sdpa_splitk import kernel
from eagle_aot.triton_kernels.sdpa_splitk.tiling import Tiling, ring_splits, row_tile, tile_rows
from support.interpreted.as_a_gpu import allocate_output
from support.kernels.sdpa_cases import Forward, Layer, Text, chain, forward, relative_error, tree

ERROR = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}

LAYERS = [
    Layer(4, 2, 64, 0, torch.float32),
    Layer(3, 3, 16, 0, torch.float32),  # every head has its own keys
    Layer(7, 1, 32, 0, torch.float32),  # a group whose number of rows is not a power of two
    Layer(4, 1, 128, 0, torch.bfloat16),
    Layer(2, 1, 256, 0, torch.float16),
    Layer(2, 1, 512, 0, torch.bfloat16),
    Layer(4, 2, 64, 24, torch.float32),
    Layer(2, 1, 16, 37, torch.float32),  # chunks and tiles that end inside the ring
    Layer(2, 1, 16, 9, torch.float32),  # a window that ends in the tail
    Layer(4, 2, 64, 64, torch.bfloat16),
    Layer(4, 1, 64, 0, torch.bfloat16, int8=True),
    Layer(3, 3, 16, 0, torch.bfloat16, int8=True),  # elements are not read in pairs
    Layer(4, 2, 64, 64, torch.bfloat16, int8=True),
    Layer(4, 2, 64, 0, torch.bfloat16, by_token=True),
    Layer(6, 3, 64, 64, torch.bfloat16, int8=True, by_token=True),
]
FLAT, RING = LAYERS[0], LAYERS[6]
TILED = [*LAYERS[1:4], RING, LAYERS[8]]
"""Layers with every group size, with and without a window: what decides how rows are tiled."""

KINDS = [LAYERS[2], LAYERS[3], RING, *LAYERS[8:]]
"""Layers without a window, with one of whole chunks and with others, in float32, 16 and 8 bits:
what decides which keys a row reads and in which precision."""

HUGE = 6e4  # in half precision too
SETTINGS = settings(max_examples=8, deadline=None, derandomize=True, database=None)

FEW = [-1, 0, 0, 1, 2, 2, -1, 6]
"""Parents of a tree's rows: branches of three lengths."""

SCATTERED = [5, 9, 0, 60, 3, 2, 1, 7]
"""Their slots, counted from the end of the committed tokens."""

CONTEXTS = [0, 1, 15, 16, 17, 60, 79, 80, 511]
"""Numbers of committed tokens: around the length of a tail, and where chunks become longer."""

MORE = {LAYERS[2]: CONTEXTS, RING: CONTEXTS[::2], LAYERS[8]: CONTEXTS[::2]}
CHAINS = [(layer, context) for layer in LAYERS for context in MORE.get(layer, [79])]
"""Contexts act alike on all layers without a window, so one of them has all contexts. One layer
with a window of whole chunks has every second, and so has one whose window ends in the tail; others
have the start of longer chunks."""

TREES = [
    (layer, context)
    for layer in LAYERS
    for context in ([0, 17, 511] if layer in (LAYERS[2], RING) else [79])
]
"""Fewer contexts for trees: chains cover the keys before the tail."""


def tiling(layer: Layer, **changes: Any) -> Tiling:
    """Make a tiling with small chunks: 16 keys up to the committed key 63, then 32, 48, ..."""
    rows = row_tile(layer.heads // layer.kv_heads)
    tiles = replace(Tiling(rows, 16, 16, 4, 4, 2), **changes)
    if not layer.window:
        return tiles
    rows = tile_rows(tiles, layer.heads // layer.kv_heads)
    return replace(tiles, splits=ring_splits(layer.window, tiles.chunk, rows))


def attend(case: Forward, **changes: int) -> Tensor:
    """Return the kernel's output [B, T, heads, D]."""
    return kernel.launch(*case.arguments, tiling(case.layer, **changes))


def alone(layer: Layer, text: Text, row: int) -> Tensor:
    """Return the output of a row as plain decoding runs it, [heads, D]."""
    return attend(forward(layer, text.only(row)))[0, 0]


def test_fresh_memory_holds_nan() -> None:
    assert torch.ones(2).new_empty(100, dtype=torch.bfloat16).isnan().all()


@pytest.mark.parametrize(("layer", "context"), CHAINS, ids=str)
def test_a_chain_matches_attention_and_each_row_alone(layer: Layer, context: int) -> None:
    """Contexts have about the lengths of tails, chunks and rings."""
    text = chain(context, 8)
    case = forward(layer, text)
    output = attend(case)
    assert output.shape == case.q.shape and output.dtype == case.q.dtype
    assert relative_error(output, case.expected()) < ERROR[layer.dtype]
    assert all(torch.equal(alone(layer, text, row), output[0, row]) for row in (0, 7))
    assert torch.equal(attend(forward(layer, text.some(2, 7))), output[:, 2:7])


@pytest.mark.parametrize(("layer", "context"), TREES, ids=str)
def test_a_node_of_a_tree_equals_itself_alone(layer: Layer, context: int) -> None:
    text = tree(context, FEW, SCATTERED)
    case = forward(layer, text)
    output = attend(case)
    assert relative_error(output, case.expected()) < ERROR[layer.dtype]
    assert all(torch.equal(alone(layer, text, row), output[0, row]) for row in (3, 5))


@pytest.mark.parametrize("layer", KINDS, ids=str)
def test_other_sequences_and_padding_change_no_bit(layer: Layer) -> None:
    """Texts of different lengths are in caches of another order, and have missing rows."""
    texts = chain(70, 3), tree(130, FEW, SCATTERED, 300), chain(4, 1, 900), chain(0, 2, 1000)
    case = forward(layer, *texts, rows=10, caches=[3, 0, 4, 1], number_of_caches=6)
    output = attend(case)
    for b, text in enumerate(texts):
        rows = len(text.rows)
        assert torch.equal(attend(forward(layer, text))[0], output[b, :rows])
        assert relative_error(output[b, :rows], case.expected()[b, :rows]) < ERROR[layer.dtype]
        assert not output[b, rows:].any()


class Wider(Layer):
    """A layer that sees one key more than its ring was made for, like those of an assistant."""

    @property
    def ring(self) -> int:
        return self.window - 1 + max(self.window - 1, 96)


@pytest.mark.parametrize("context", [0, 24, 25, 150])
def test_a_window_longer_than_the_minimum_ring(context: int) -> None:
    """The rows all have one position: each is a branch."""
    layer = Wider(4, 2, 64, 25, torch.float32)
    text = tree(context, [-1] * 6)
    case = forward(layer, text)
    output = attend(case)
    assert relative_error(output, case.expected()) < ERROR[layer.dtype]
    assert torch.equal(alone(layer, text, 5), output[0, 5])


@pytest.mark.parametrize("layer", [LAYERS[3], RING], ids=str)
def test_a_long_context_matches_attention(layer: Layer) -> None:
    text = tree(1500, FEW, SCATTERED)
    case = forward(layer, text, slots=1600)
    output = attend(case)
    assert relative_error(output, case.expected()) < ERROR[layer.dtype]
    plain = forward(layer, text.only(5), slots=1580)
    assert torch.equal(attend(plain)[0, 0], output[0, 5])


@pytest.mark.parametrize("layer", TILED, ids=str)
def test_rows_beyond_one_tile_equal_each_row_alone(layer: Layer) -> None:
    """The rows are on both sides of the position where chunks become longer."""
    text = chain(70, 24)
    case = forward(layer, text)
    together = attend(case)
    assert relative_error(together, case.expected()) < ERROR[layer.dtype]
    for first, end in ((0, 9), (3, 20), (9, 10), (23, 24)):
        some = attend(forward(layer, text.some(first, end)))
        assert torch.equal(some, together[:, first:end])


@st.composite
def trees(draw: st.DrawFn, context: int) -> Text:
    """Make rows no deeper than a tail, in slots that are all different."""
    parents: list[int] = []
    for row in range(draw(st.integers(1, 20))):
        parents.append(draw(st.integers(-1, row - 1)))
    depths = [0] * len(parents)
    for row, parent in enumerate(parents):
        if parent >= 0 and depths[parent] == 15:
            parents[row] = -1
        depths[row] = depths[parents[row]] + 1 if parents[row] >= 0 else 0
    slots = draw(st.permutations(range(64)))[: len(parents)]
    return tree(context, parents, slots, draw(st.integers(0, 100)))


@SETTINGS
@given(
    layer=st.sampled_from([FLAT, RING, LAYERS[7], LAYERS[8]]),
    contexts=st.lists(st.integers(0, 300), min_size=1, max_size=2),
    data=st.data(),
)
def test_any_row_equals_itself_alone(
    layer: Layer, contexts: list[int], data: st.DataObject
) -> None:
    texts = [data.draw(trees(context)) for context in contexts]
    case = forward(layer, *texts, rows=max(len(text.rows) for text in texts) + 1)
    output = attend(case)
    assert relative_error(output, case.expected()) < ERROR[layer.dtype]
    b = data.draw(st.integers(0, len(texts) - 1))
    row = data.draw(st.integers(0, len(texts[b].rows) - 1))
    assert torch.equal(alone(layer, texts[b], row), output[b, row])


@pytest.mark.parametrize("layer", TILED, ids=str)
def test_the_tile_size_changes_no_bit(layer: Layer) -> None:
    """A single split gives the chunks of a tree's rows two lengths."""
    case = forward(layer, tree(200, [*range(-1, 14), *FEW]))
    assert torch.equal(attend(case, row_tile=64), attend(case))
    if not layer.window:
        few = attend(case, splits=1)
        assert relative_error(few, case.expected()) < ERROR[layer.dtype]


@pytest.mark.parametrize("layer", [FLAT, LAYERS[3], RING, LAYERS[8]], ids=str)
def test_the_number_of_tails_in_a_program_changes_no_bit(layer: Layer) -> None:
    """A program has the tails of two rows, or of four; the last one has fewer."""
    text = tree(70, FEW[:7], SCATTERED)
    case = forward(layer, text, rows=9)
    for tails in ({"chunk": 32}, {"chunk": 64}, {"chunk": 64, "key_tile": 32}):
        together = attend(case, **tails)
        assert relative_error(together[:, :7], case.expected()[:, :7]) < ERROR[layer.dtype]
        for row in (0, 3, 6):
            plain = attend(forward(layer, text.only(row)), **tails)
            assert torch.equal(plain[0, 0], together[0, row])


@pytest.mark.parametrize("layer", LAYERS[2:5], ids=str)
def test_the_buffers_length_changes_no_bit(layer: Layer) -> None:
    text = chain(70, 3)
    outputs = [attend(forward(layer, text, slots=slots)) for slots in (73, 128, 1000)]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("layer", [*KINDS, LAYERS[4]], ids=str)
def test_hidden_slots_change_no_bit(layer: Layer) -> None:
    text = tree(150, FEW, SCATTERED)
    clean, huge, infinite = (
        attend(forward(layer, text, rows=9, hidden=hidden)) for hidden in (math.nan, HUGE, math.inf)
    )
    assert torch.equal(huge, clean) and torch.equal(infinite, clean)


@pytest.mark.parametrize("rows", [3, 11])
def test_memory_after_the_output_is_not_written(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    case = forward(Layer(7, 1, 32, 0, torch.float32), chain(20, rows))
    buffer = torch.full((4096,), torch.nan)
    allocate_output(monkeypatch, buffer, (1, rows, 7, 32))
    output = attend(case)
    assert output.data_ptr() == buffer.data_ptr()
    assert not output.isnan().any() and buffer[rows * 7 * 32 :].isnan().all()


def test_zero_values_give_zero() -> None:
    """Partial sums are divided by their largest element, which is 0."""
    case = forward(Layer(4, 2, 64, 0, torch.bfloat16), chain(100, 2), hidden=0.0)
    output = attend(replace(case, v=torch.zeros_like(case.v)))
    assert not output.any() and not output.isnan().any()


def test_sums_far_from_one_keep_their_precision() -> None:
    """Partial sums are stored in half precision, with a range from 6e-8 to 65504."""
    case = forward(Layer(2, 1, 32, 0, torch.bfloat16), chain(100, 1))
    for factor in (2.0**-30, 2.0**30):
        output = attend(replace(case, v=case.v * factor))
        assert relative_error(output / factor, case.expected()) < 6e-3
