"""Layers with their attention as one kernel on a GPU: the bits of the kernels it replaces."""

import pytest
import torch

from eagle_aot.triton_kernels.layer_products.macros import common_macros
from eagle_aot.triton_kernels.layer_products.op import (
    EMPTY,
    exchanged_size,
    layer_attention,
    layer_products,
    separate_attention,
    separate_kernels,
)
from support.kernels.layer_cases import (
    LayerCase,
    attention_after,
    attention_of,
    macros_of,
    with_attention,
)
from support.kernels.sdpa_cases import Layer, Text, chain, tree

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an H100 or H200",
    ),
    pytest.mark.usefixtures("as_exported"),
]

GEMMA = LayerCase(5376, 21504, 8192, 16384)
BEFORE_FULL = LayerCase(5376, 21504, 8192, 18432)
AFTER_FULL = LayerCase(5376, 21504, 16384, 16384)
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


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_layers_before_and_after_full_ones_run_the_same_code(rows: int) -> None:
    count = torch.cuda.get_device_properties().multi_processor_count
    before, after = (case.weights("cuda", count)[:-1] for case in (BEFORE_FULL, AFTER_FULL))
    size = exchanged_size(after[0], after[2], count, HEADS.heads)
    store, attend = attention_after(HEADS, chain(1500, rows), device="cuda")
    attentions = [{}, attention_of(after, store, attend)]
    macros, same = common_macros([macros_of(each, size) for each in (before, after)], attentions)
    assert macros == same
    exchanged = torch.full((size,), EMPTY, device="cuda", dtype=torch.int32)
    for _ in range(10):
        x = BEFORE_FULL.rows(rows, "cuda")
        *found, emptied = layer_products(*x, exchanged.clone(), *before, macros)
        *expected, _ = separate_kernels(*x, exchanged, *before, macros)
        x = AFTER_FULL.rows(rows, "cuda")
        parts, *others = separate_kernels(*x, exchanged, *after, macros)
        caches = [[cache.clone() for cache in store[4:6]] for _ in range(2)]
        own, *results, _ = layer_attention(
            *x, emptied, *after, macros, *store[:4], *caches[0], *store[6:], *attend
        )
        out = separate_attention(parts, *store[:4], *caches[1], *store[6:], *attend)
        pairs = zip([*found, own, *results], [*expected, out, *others[:2]], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
