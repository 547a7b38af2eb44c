"""Attention of a few rows on a GPU, at real shapes: against float64, and bit by bit."""

import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.device import H100, capability
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk
from support.kernels.sdpa_cases import Forward, Layer, Text, chain, forward, relative_error, tree

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("as_exported"),
]

ERROR = {torch.bfloat16: 5e-3, torch.float16: 1e-3}

GEMMA_FULL = Layer(32, 4, 512, 0, torch.bfloat16)
GEMMA_SLIDING = Layer(32, 16, 256, 1024, torch.bfloat16)
GEMMA_HEAD = Layer(32, 16, 256, 0, torch.bfloat16)
LLAMA = Layer(32, 8, 128, 0, torch.bfloat16)
LAYERS = [
    GEMMA_FULL,
    GEMMA_SLIDING,
    LLAMA,
    GEMMA_HEAD,
    Layer(28, 4, 128, 0, torch.bfloat16),  # seven heads share their keys
    Layer(16, 8, 256, 0, torch.bfloat16),
    Layer(15, 3, 512, 0, torch.bfloat16),
    Layer(12, 12, 64, 0, torch.bfloat16),
    Layer(8, 1, 64, 0, torch.float16),
    Layer(4, 2, 64, 64, torch.bfloat16),  # the shipped target
    Layer(4, 1, 128, 0, torch.bfloat16),
    Layer(4, 2, 16, 20, torch.bfloat16),
    replace(GEMMA_FULL, int8=True),
    replace(GEMMA_SLIDING, int8=True),
    replace(LLAMA, int8=True),
    replace(GEMMA_FULL, by_token=True),
    replace(GEMMA_SLIDING, int8=True, by_token=True),
]
CONTEXTS = [0, 1, 15, 16, 17, 511, 1040, 4096, 30000]
FEW = [-1, 0, 0, 1, 2, 2, -1, 6]
SCATTERED = [5, 9, 0, 60, 3, 2, 1, 7]
SLOTS = 32864
TOKENS = 32768


def case_of(layer: Layer, *texts: Text, slots: int = SLOTS, **options: Any) -> Forward:
    return forward(layer, *texts, slots=slots, tokens=TOKENS, device="cuda", **options)


def attend(layer: Layer, *texts: Text) -> Tensor:
    """Return the kernel's output [B, T, heads, D]."""
    return sdpa_splitk(*case_of(layer, *texts).arguments)


def alone(layer: Layer, text: Text, row: int) -> Tensor:
    """Return the output of a row as plain decoding runs it, [heads, D]."""
    return attend(layer, text.only(row))[0, 0]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("context", CONTEXTS)
def test_chains_and_trees_match_attention_row_by_row(layer: Layer, context: int) -> None:
    """Three sequences side by side, in scattered slots and with padding."""
    texts = chain(context, 8), tree(context, FEW, SCATTERED, 100), tree(context // 2 + 3, FEW[:3])
    case = case_of(layer, *texts, rows=9)
    output = sdpa_splitk(*case.arguments)
    assert torch.equal(sdpa_splitk(*case.arguments), output)
    assert relative_error(output, case.expected()) < ERROR[layer.dtype]
    for b, text in enumerate(texts):
        rows = len(text.rows)
        assert torch.equal(attend(layer, text)[0], output[b, :rows])
        assert not output[b, rows:].any()
        for row in {0, 2, 5, 7} & set(range(rows)):
            assert torch.equal(alone(layer, text, row), output[b, row])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("context", [0, 300, 2000, 29500])
def test_rows_beyond_one_tile_equal_each_row_alone(layer: Layer, context: int) -> None:
    """A drafter's `draft_decode` is compiled once, for rows of rounds and of prompts."""
    longest = min(512, layer.ring - layer.window + 1) if layer.window else 512
    text = chain(context, longest)
    case = case_of(layer, text)
    together = sdpa_splitk(*case.arguments)
    expected = case.expected(every=37)
    assert relative_error(together[:, ::37], expected[:, ::37]) < ERROR[layer.dtype]
    for first, end in ((0, 9), (3, 67), (40, 57), (0, longest - 1), (longest - 1, longest)):
        assert torch.equal(attend(layer, text.some(first, end)), together[:, first:end])
    for row in {7, 20, 200, 511} & set(range(longest)):
        assert torch.equal(alone(layer, text, row), together[0, row])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_eight_trees_equal_each_row_alone(layer: Layer) -> None:
    """64 rows, in caches in another order."""
    texts = [tree(700 * b + 5, FEW, SCATTERED, 50 * b) for b in range(8)]
    case = case_of(layer, *texts, slots=8192)
    order = torch.randperm(8, device="cuda")
    shuffled = replace(case, k=case.k[:, order], v=case.v[:, order], sequences=order.argsort())
    output = sdpa_splitk(*case.arguments)
    assert torch.equal(sdpa_splitk(*shuffled.arguments), output)
    for b in (0, 3, 7):
        assert torch.equal(alone(layer, texts[b], 5), output[b, 5])


@pytest.mark.parametrize("layer", [x for x in LAYERS if not x.window], ids=str)
def test_the_buffers_length_changes_no_bit(layer: Layer) -> None:
    text = tree(4200, FEW)
    cases = (case_of(layer, text, slots=slots) for slots in (4208, 4209, 8192, 65544))
    first, *others = (sdpa_splitk(*case.arguments) for case in cases)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("heads", [5, 10])
def test_offsets_beyond_32_bits_are_read(heads: int) -> None:
    """Each head has 2^29 elements, so the fifth starts at 2^31."""
    case = case_of(Layer(heads, 5, 512, 0, torch.bfloat16), chain(30, 2), slots=32)
    expected = sdpa_splitk(*case.arguments)
    shape = 5, 2, 1 << 19, 512
    far = [torch.full(shape, math.nan, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    for cache, near in zip(far, (case.k, case.v), strict=True):
        cache[:, 1, :32] = near[:, 0]
    moved = replace(case, k=far[0], v=far[1], sequences=torch.ones_like(case.sequences))
    assert torch.equal(sdpa_splitk(*moved.arguments), expected)


def test_strided_queries_give_the_same_output() -> None:
    case = case_of(LLAMA, chain(100, 3))
    strided = replace(case, q=case.q.transpose(1, 2).contiguous().transpose(1, 2))
    assert torch.equal(sdpa_splitk(*strided.arguments), sdpa_splitk(*case.arguments))


def test_both_kernels_serve_wide_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's on an H100 within an export, Triton's elsewhere."""
    from eagle_aot.triton_kernels import cuda_source
    from eagle_aot.triton_kernels.sdpa_splitk import kernel, wide

    launch = Mock(wraps=wide.launch)
    monkeypatch.setattr(kernel, "launch_wide", launch)
    for context in (0, 40, 4096):
        case = case_of(GEMMA_FULL, chain(context, 8), tree(context, FEW, SCATTERED, 100))
        launch.reset_mock()
        assert relative_error(sdpa_splitk(*case.arguments), case.expected()) < 5e-3
        assert launch.called == (capability() == H100)
        with monkeypatch.context() as patch:
            patch.setattr(cuda_source, "is_compiling", lambda: False)
            launch.reset_mock()
            assert relative_error(sdpa_splitk(*case.arguments), case.expected()) < 5e-3
            assert not launch.called
