"""Attention of a few rows on a GPU, at real shapes: against float64, and bit by bit."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk
from support.sdpa_cases import Layer, relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

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
    Layer(12, 12, 64, 0, torch.bfloat16),
    Layer(8, 1, 64, 0, torch.float16),
    Layer(4, 2, 64, 64, torch.bfloat16),  # the shipped target
    Layer(4, 1, 128, 0, torch.bfloat16),
    Layer(4, 2, 16, 20, torch.bfloat16),
]
ANCHORS = [0, 1, 17, 31, 32, 33, 200, 1000, 8191, 30000, 65535]
SLOTS = 30100


def attend(layer: Layer, q: Tensor, k: Tensor, v: Tensor, positions: list[int]) -> Tensor:
    pos = torch.tensor(positions, device="cuda")
    return sdpa_splitk(q, k, v, pos, layer.scale, layer.window)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_it_is_attention_at_every_anchor(layer: Layer) -> None:
    """And not much farther from float64 than PyTorch's own attention is."""
    for anchor in ANCHORS:
        positions = list(range(anchor, anchor + 8))
        slots = anchor + 50
        q, (k, v) = layer.queries(8, "cuda"), layer.cache(positions, slots, math.nan, "cuda")
        output = attend(layer, q, k, v, positions)
        mask = layer.mask(positions, k.shape[2], "cuda")
        k, v = (torch.where(mask.any(dim=0).unsqueeze(-1), x, 0.0) for x in (k, v))
        expected = layer.expected(q, k, v, positions)
        stock = F.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, mask, scale=layer.scale, enable_gqa=True
        )
        error = relative_error(output, expected)
        assert error < ERROR[layer.dtype], anchor
        assert error < 1.5 * relative_error(stock.transpose(1, 2), expected) + 1e-4, anchor


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("anchor", [0, 28, 1052, 2108, 30000])
def test_a_rows_bits_do_not_depend_on_its_neighbours(layer: Layer, anchor: int) -> None:
    """Also where neighbours' chunks differ in length."""
    positions = list(range(anchor, anchor + 8))
    q, (k, v) = layer.queries(8, "cuda"), layer.cache(positions, SLOTS, math.nan, "cuda")
    together = attend(layer, q, k, v, positions)
    assert torch.equal(attend(layer, q, k, v, positions), together)
    for rows in range(1, 8):
        some = attend(layer, q[:, :rows], k, v, positions[:rows])
        assert torch.equal(some, together[:, :rows])
    for row in range(8):
        alone = attend(layer, q[:, row : row + 1], k, v, positions[row : row + 1])
        assert torch.equal(alone[:, 0], together[:, row])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("anchor", [0, 300, 2000, 29500])
def test_rows_beyond_a_tile_are_further_tiles(layer: Layer, anchor: int) -> None:
    """As in a head's `draft_decode`, which is compiled once for a round's row and a prompt's."""
    longest = min(512, layer.window + 1) if layer.window else 512
    positions = list(range(anchor, anchor + longest))
    q, (k, v) = layer.queries(longest, "cuda"), layer.cache(positions, SLOTS, math.nan, "cuda")
    together = attend(layer, q, k, v, positions)
    expected = layer.expected(q, k, v, positions)
    assert relative_error(together, expected) < ERROR[layer.dtype]
    for rows in (9, 16, 17, 40, 100, longest - 1):
        if rows <= longest:
            some = attend(layer, q[:, :rows], k, v, positions[:rows])
            assert torch.equal(some, together[:, :rows])
    for first in range(0, longest, 8):
        some = attend(layer, q[:, first : first + 8], k, v, positions[first : first + 8])
        assert torch.equal(some, together[:, first : first + 8])
    for row in {0, 7, 8, 20, 200, 211, 212, 511} & set(range(longest)):
        alone = attend(layer, q[:, row : row + 1], k, v, positions[row : row + 1])
        assert torch.equal(alone[:, 0], together[:, row])


@pytest.mark.parametrize("layer", [x for x in LAYERS if not x.window], ids=str)
def test_the_buffers_length_changes_no_bit(layer: Layer) -> None:
    positions = [4200, 4201]
    q = layer.queries(2, "cuda")
    outputs = []
    # None so long that a GPU draws its random numbers in several pieces, and so others.
    for slots in (4202, 4203, 8192, 65544):
        k, v = layer.cache(positions, slots, math.nan, "cuda")
        outputs.append(attend(layer, q, k, v, positions))
    assert all(torch.equal(outputs[0], output) for output in outputs)


def test_the_end_of_a_long_cache_is_reached() -> None:
    """A head has 2^29 elements: the fifth lies behind 2^31."""
    layer = Layer(5, 5, 512, 0, torch.bfloat16)
    positions = [2, 3]
    q, (k, v) = layer.queries(2, "cuda"), layer.cache(positions, 8, math.nan, "cuda")
    expected = attend(layer, q, k, v, positions)
    slots = 1 << 20
    far = [torch.empty(1, 5, slots, 512, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    for cache, near in zip(far, (k, v), strict=True):
        cache[:, :, :8] = near
    assert torch.equal(attend(layer, q, *far, positions), expected)


def test_strided_queries_are_read_as_they_are_meant() -> None:
    positions = [100, 101, 102]
    q, (k, v) = LLAMA.queries(3, "cuda"), LLAMA.cache(positions, 128, math.nan, "cuda")
    strided = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(attend(LLAMA, strided, k, v, positions), attend(LLAMA, q, k, v, positions))
