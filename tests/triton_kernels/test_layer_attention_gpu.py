"""Layers with their attention as one kernel on a GPU: the bits of the kernels it replaces."""

from collections.abc import Iterator

import pytest
import torch

from eagle_aot.triton_kernels.layer_products.op import (
    layer_attention,
    separate_attention,
    separate_kernels,
)
from support.kernels.layer_cases import LayerCase, attention_after, with_attention
from support.kernels.sdpa_cases import Layer, Text, chain, tree

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs an H100 or H200",
)

GEMMA = LayerCase(5376, 21504, 8192, 16384)
HEADS = Layer(32, 16, 256, 1024, torch.bfloat16)
BY_TOKEN = Layer(32, 16, 256, 1024, torch.bfloat16, by_token=True)
PARENTS = (-1, 0, 0, 1, 2, 2, -1, 6)
FORWARDS: dict[str, tuple[Text, ...]] = {
    **{
        f"{rows} after {context}": (chain(context, rows),)
        for context in (0, 15, 700, 1040, 1500, 4000)
        for rows in (1, 2, 5, 8)
    },
    "a tree": (tree(2047, PARENTS),),
    "nine rows": (chain(900, 9),),
    "four texts, with padding": (chain(3000, 2), chain(40, 1), chain(1023, 2), chain(5000, 2)),
    "two texts of five": (chain(3000, 5), chain(40, 5)),
}


@pytest.fixture(autouse=True)
def compiled_from_cuda() -> Iterator[None]:
    from eagle_aot.triton_kernels.layer_products.kernel import compiled_from_cuda

    with compiled_from_cuda():
        yield


@pytest.mark.parametrize("heads", [HEADS, BY_TOKEN])
def test_bits_are_those_of_separate_kernels(heads: Layer) -> None:
    """Again and again, since a race does not show every time."""
    count = torch.cuda.get_device_properties().multi_processor_count
    plain = GEMMA.weights("cuda", count, heads.heads)
    exchanged = GEMMA.exchanged(plain, heads.heads)
    for name, texts in FORWARDS.items():
        store, attend = attention_after(heads, *texts, device="cuda")
        weights = with_attention(plain, store, attend)
        before, caches, after = store[:4], store[4:6], store[6:]
        for _ in range(10):
            x = GEMMA.rows(len(after[0]), "cuda")
            found, expected = ([cache.clone() for cache in caches] for _ in range(2))
            parts, *others = separate_kernels(*x, exchanged, *weights)
            out = separate_attention(parts, *before, *expected, *after, *attend)
            results = layer_attention(
                *x, exchanged.clone(), *weights, *before, *found, *after, *attend
            )
            pairs = [*zip(found, expected, strict=True), (results[0], out)]
            pairs += zip(results[1:3], others[:2], strict=True)
            differ = [int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in pairs]
            assert differ == [0] * 5, name
