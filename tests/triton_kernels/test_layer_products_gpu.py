"""Layers as one kernel on a GPU: the bits of the kernels that it replaces."""

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.layer_products import layer_products, op
from eagle_aot.triton_kernels.layer_products.op import separate_kernels
from support.kernels.layer_cases import LayerCase

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs an H100 or H200",
    ),
    pytest.mark.usefixtures("as_exported"),
]

CASES = {
    "gemma4-31b, sliding to sliding": LayerCase(5376, 21504, 8192, 16384),
    "gemma4-31b, sliding to full": LayerCase(5376, 21504, 8192, 18432),
    "gemma4-31b, full to sliding": LayerCase(5376, 21504, 16384, 16384),
    "qwen3-32b": LayerCase(5120, 25600, 8192, 10240, "silu", has_posts=False, has_scale=False),
    "llama-3.1-8b": LayerCase(4096, 14336, 4096, 6144, "silu", has_posts=False, has_scale=False),
    "llama-3.1-70b": LayerCase(8192, 28672, 8192, 10240, "silu", has_posts=False, has_scale=False),
    "the least hidden size": LayerCase(2048, 6144, 2048, 4096),
    "gemma4-31b, the last layer": LayerCase(5376, 21504, 16384, 0),
    "llama-3.1-8b, the last layer": LayerCase(4096, 14336, 4096, 0, "silu", False, False),
}
"""In Llama's, a tile of gate and up is handed on twice."""


def differing(found: list[Tensor], expected: list[Tensor]) -> list[int]:
    """How many elements of each result are not the same bits."""
    pairs = zip(found, expected, strict=True)
    return [int((a != b).sum()) + int(a.isnan().sum()) for a, b in pairs]


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_separate_kernels(name: str) -> None:
    """Again and again, since a race does not show every time, and with more rows than the kernel
    computes."""
    case, count = CASES[name], torch.cuda.get_device_properties().multi_processor_count
    weights = case.weights("cuda", count)
    for rows in (*range(1, 10), 40):
        for _ in range(30):
            x = case.rows(rows, "cuda")
            *expected, _ = separate_kernels(*x, case.exchanged(weights), *weights)
            *found, emptied = layer_products(*x, case.exchanged(weights), *weights)
            first = 0 if case.projected else 1  # the last layer's parts mean nothing
            assert not any(differing(found[first:], expected[first:]))
            pairs = (rows + 1) // 2 if rows <= op.ROWS else 0
            assert (emptied[: emptied.numel() // 4 * pairs] == op.EMPTY).all()


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_ends_as_it_does_in_separate_kernels(rows: int, value: float) -> None:
    """It does not hang a program that looks for a result, and stays in its row."""
    case, count = CASES["llama-3.1-8b"], torch.cuda.get_device_properties().multi_processor_count
    weights = case.weights("cuda", count)
    for at in range(2):
        x = case.rows(rows, "cuda")
        x[at][0, rows // 2, 77] = value
        *expected, _ = separate_kernels(*x, case.exchanged(weights), *weights)
        *found, _ = layer_products(*x, case.exchanged(weights), *weights)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        hit = [bool(row.isnan().any()) for row in found[1][0]]
        assert hit == [row == rows // 2 for row in range(rows)]


def test_a_graph_of_two_layers_computes_new_rows_in_every_replay() -> None:
    """The second layer's programs exchange what the first layer's have emptied."""
    case, count = next(iter(CASES.values())), torch.cuda.get_device_properties()
    weights, x = case.weights("cuda", count.multi_processor_count), case.rows(5, "cuda")

    def both() -> list[Tensor]:
        _, stream, _, emptied = layer_products(*x, case.exchanged(weights), *weights)
        return list(layer_products(x[0], stream, emptied, *weights)[:3])

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both()
    for _ in range(100):
        for rows, others in zip(x, case.rows(5, "cuda"), strict=True):
            rows.copy_(others)
        graph.replay()
        _, stream, *_ = separate_kernels(*x, x[0], *weights)
        *expected, _ = separate_kernels(x[0], stream, x[0], *weights)
        assert differing(found, expected) == [0, 0, 0]
