"""The CUDA source of layers as one kernel, with fibers of a CPU for threads: its exchanges, shapes
and places in memory. Bits, whose order of sums is the tensor cores', are compared on a GPU."""

import shutil
from collections.abc import Sequence
from ctypes import CDLL, c_bool, c_void_p
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.triton_kernels.layer_products import op
from eagle_aot.triton_kernels.layer_products.macros import common_macros, packed_shape, shapes_of
from support.kernels.compiled import compiled_for_cpu
from support.kernels.layer_cases import (
    LayerCase,
    attention_after,
    attention_of,
    macros_of,
)
from support.kernels.sdpa_cases import Layer, chain, tree

pytestmark = pytest.mark.skipif(
    None in (shutil.which("nvcc"), shutil.which("g++")), reason="needs nvcc and g++"
)

SOURCE = Path(op.__file__).with_name("kernel.cu")
BLOCKS = 8
CASES = {
    "Gemma's norms": LayerCase(2304, 384, 384, 512),
    "without norms after, and SiLU": LayerCase(512, 512, 640, 768, "silu", False, False),
    "the last layer": LayerCase(2304, 384, 384, 0),
    "the last layer without norms after": LayerCase(512, 512, 640, 0, "silu", False, False),
}
SPLITS = [3, 1, 2, 2]
"""Of K. Some programs have several parts of the first product, others none."""


def compiled(macros: str, directory: Path) -> CDLL:
    """Compile `layer` of `layer_products_on_cpu.cpp`."""
    sizes = f"SHARED={op.SHARED} LAUNCHED={32 * op.SETS * (op.WARPS + 1)}"
    return compiled_for_cpu("layer_products_on_cpu.cpp", SOURCE, f"{macros} {sizes}", directory)


def run(
    layer: Any,
    x: tuple[Tensor, Tensor],
    exchanged: Tensor,
    weights: tuple[Any, ...],
    seed: int,
    heads: Sequence[Tensor] = (),
) -> list[Tensor]:
    """Return what the kernel computes: exchanged memory, emptied, streams, norm and parts.

    `heads` are its arguments of attention."""
    codes, scales, splits, posts, following, scale, *_ = weights
    like, rows = x[1], x[1].shape[1]
    width = codes[3].shape[0] * 128 if len(codes) > 3 else 128
    outputs = [
        exchanged, torch.zeros_like(exchanged), *(torch.empty_like(like) for _ in range(3)),
        torch.full((splits[-1], 1, rows, width), torch.nan),
    ]  # fmt: skip
    pairs = [each for pair in zip(codes, scales, strict=True) for each in pair]
    pairs += pairs[4:] if len(codes) < 4 else []
    first, second = posts or following
    norms = first, following[0], second, following[1] if scale is None else scale, following[1]
    inputs = [*x, *pairs, *norms]
    layer.restype = c_bool
    addresses = [(c_void_p * len(group))(*(each.data_ptr() for each in group))
                 for group in (inputs, outputs, heads or 13 * x[:1])]  # fmt: skip
    shapes = [packed_shape(*shape) for shape in shapes_of(codes, splits)]
    attends = 1 if heads else 2
    assert layer(*addresses, rows, *shapes, attends, seed), "threads wait for each other"
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_separate_operators_do(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    weights = case.weights("cpu", BLOCKS, splits=SPLITS[: 4 if case.projected else 3])
    library = compiled(weights[-1], tmp_path)
    for rows in (1, 3, 8):
        x = case.rows(rows, "cpu")
        exchanged = case.exchanged(weights)
        *expected, _ = op.separate_kernels(*x, exchanged, *weights)
        _, emptied, _, stream, normed, parts = run(library.layer, x, exchanged, weights, rows)
        pairs = [(stream, expected[1]), (normed, expected[2])]
        if case.projected:  # on a CPU it is all in the first part
            pairs.append((parts.sum(0), expected[0].float().sum(0)))
        else:
            assert parts.isnan().all(), "there is no product after the last layer"
        for found, wanted in pairs:
            error = (found.float() - wanted.float()).norm() / wanted.float().norm()
            assert error < 0.01, "bfloat16 has eight bits"
        assert (emptied[: emptied.numel() // 4 * ((rows + 1) // 2)] == op.EMPTY).all()


ATTENDING = LayerCase(512, 512, 512, 1024)
HEADS = Layer(heads=2, kv_heads=1, head_dim=256, window=1024, dtype=torch.bfloat16)
TEXTS = {
    "nothing committed": chain(9, 4),
    "one row": chain(700, 1),
    "parts of two chunks": chain(1500, 8),
    "a tree where the ring begins again": tree(2047, (-1, 0, 0, 1, 1, 2, 3, 5)),
}


OTHER = LayerCase(512, 512, 896, 768)
"""Of other attentions on both sides."""


@pytest.fixture(scope="module")
def attending(tmp_path_factory: pytest.TempPathFactory) -> tuple[CDLL, list[tuple[Any, ...]], int]:
    """A library, the weights of both layers that it serves, and how much they exchange."""
    both = [
        case.weights("cpu", BLOCKS, splits=splits)
        for case, splits in ((ATTENDING, [2, 1, 2, 2]), (OTHER, [3, 1, 2, 1]))
    ]
    size = op.exchanged_size(both[0][0], [3, 1, 2, 2], BLOCKS, HEADS.heads)
    attention = attention_of(both[0], *attention_after(HEADS, TEXTS["one row"]))
    macros, same = common_macros([macros_of(each, size) for each in both], [attention, {}])
    assert macros == same
    return compiled(macros, tmp_path_factory.mktemp("attending")), both, size


@pytest.mark.parametrize("rows", [1, 4])
def test_a_layer_of_other_widths_runs_the_same_code(rows: int, attending: Any) -> None:
    library, (_, weights), size = attending
    x, exchanged = OTHER.rows(rows, "cpu"), torch.full((size,), op.EMPTY, dtype=torch.int32)
    *expected, _ = op.separate_kernels(*x, exchanged, *weights)
    _, _, _, stream, normed, parts = run(library.layer, x, exchanged, weights, rows)
    parts = parts.view(torch.bfloat16).flatten()[: parts.numel()].view(parts.shape)  # of one split
    for found, wanted in zip((parts, stream, normed), expected, strict=True):
        assert (found - wanted).float().norm() / wanted.float().norm() < 0.01


@pytest.mark.parametrize("name", TEXTS)
def test_attention_after_is_that_of_separate_operators(name: str, attending: Any) -> None:
    """Of the second of two texts. An entry before the rows is moved; theirs are not stored yet."""
    library, (weights, _), size = attending
    store, attend = attention_after(HEADS, TEXTS[name])
    before, caches, integers = store[:4], store[4:6], store[6:9] + attend[:3]
    rows = len(integers[0])
    x = ATTENDING.rows(rows, "cpu")
    exchanged = torch.full((size,), op.EMPTY, dtype=torch.int32)
    found, expected = ([cache.clone() for cache in caches] for _ in range(2))
    wanted, *_ = op.layer_attention(
        *x, exchanged, *weights, *before, *expected, *store[6:], *attend
    )
    out = torch.empty_like(wanted)
    heads = [*found, out, *before, *integers]
    outputs = run(library.layer, x, exchanged, weights, rows, heads)
    for a, b in ((out, wanted), *zip(found, expected, strict=True)):
        seen = ~b.isnan()
        assert torch.equal(a.isnan(), b.isnan())
        assert (a - b)[seen].float().norm() / b[seen].float().norm() < 0.02
    assert (outputs[1][: size // 4 * ((rows + 1) // 2)] == op.EMPTY).all()
    first = out.clone()
    for a, b in zip(found, caches, strict=True):
        a.copy_(b)
    run(library.layer, x, outputs[1], weights, rows + 1000, heads)
    assert torch.equal(out, first), "what is emptied serves the next layer"
