"""Layers as one operator on a CPU, and the CUDA source that a GPU's kernel is compiled from."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Node

from eagle_aot.export.lowering.patches import CUDA, applied
from eagle_aot.triton_kernels.cuda_source import Macros
from eagle_aot.triton_kernels.int4_gemm.op import int4_small_m
from eagle_aot.triton_kernels.layer_products import layer_products, op
from eagle_aot.triton_kernels.layer_products.macros import common_macros, packed_shape
from eagle_aot.triton_kernels.residual_norm import residual_norm_reference
from support.kernels.compiled import (
    Launch,
    Unlaunched,
    analyse_for_h100,
    compiled_by_nvcc,
    declared_names,
    launches,
    local_memory,
)
from support.kernels.layer_cases import LayerCase, with_attention

CASE = LayerCase(256, 384, 512, 768)
WIDE = LayerCase(5376, 21504, 8192, 16384)
SILU = LayerCase(4096, 14336, 4096, 6144, "silu", has_posts=False, has_scale=False)


@pytest.mark.parametrize("case", [CASE, LayerCase(256, 384, 512, 768, "silu", False, False)])
def test_the_operator_computes_what_separate_ones_do(case: LayerCase) -> None:
    arguments = case.weights("cpu", 4)
    codes, scales, splits, posts, following, scale, activation, eps, *_ = arguments
    attended, stream = case.rows(3, "cpu")
    widths = case.hidden, 2 * case.mlp, case.hidden, case.projected
    weights = list(zip(codes, scales, [None] * 4, widths, splits, strict=True))
    post = posts or [None, None]
    branch = int4_small_m(attended, *weights[0], "")
    first, last = (post[0], None, following[0], *eps[:2]), (post[1], scale, following[1], *eps[2:])
    after, normed = residual_norm_reference(branch, stream, *first)
    hidden = int4_small_m(normed, *weights[1], activation)[0]
    branch = int4_small_m(hidden, *weights[2], "")
    after, normed = residual_norm_reference(branch, after, *last)
    expected = int4_small_m(normed, *weights[3], ""), after, normed
    results = layer_products(attended, stream, case.exchanged(arguments), *arguments)[:3]
    for found, wanted in zip(results, expected, strict=True):
        assert torch.equal(found, wanted) and found.dtype == wanted.dtype


@pytest.mark.parametrize(
    ("case", "splits", "expected"),
    [
        (WIDE, (6, 1, 6, 2), True),
        (SILU, (8, 1, 8, 8), True),
        (replace(SILU, hidden=1920), (8, 1, 8, 8), False),  # a norm adds up in another order
        (replace(SILU, hidden=4224), (8, 1, 8, 8), False),  # an odd number of tiles
        (replace(SILU, projected=6272), (8, 1, 8, 8), True),
        (replace(SILU, projected=6272), (8, 1, 8, 7), False),  # of tiles and splits
        (replace(SILU, hidden=16384), (8, 1, 8, 8), False),  # no room for x
        (replace(SILU, hidden=2048, mlp=1024), (8, 1, 8, 8), False),  # a set without a share
        (replace(SILU, attended=1152), (8, 1, 8, 8), False),  # an empty split
        (replace(SILU, projected=262144), (8, 1, 8, 1), True),  # an INT4 output table
        (replace(SILU, projected=1 << 20), (8, 1, 8, 1), False),  # more tiles than it has bits for
        (replace(SILU, projected=0), (8, 1, 8), True),  # the last layer
    ],
)
def test_what_the_kernel_serves(case: LayerCase, splits: tuple[int, ...], expected: bool) -> None:
    codes = case.weights("meta", 132)[0]
    assert op.is_served(codes, list(splits), 132) is expected


WRITTEN = "emptied", "stream1", "stream2", "normed2", "out", "k", "v", "attended2"


OTHERS = "int4_gemm.small_m", "residual_norm.kernel", "norm_rope_store.kernel", "sdpa_splitk.kernel"


def launched(case: LayerCase, monkeypatch: pytest.MonkeyPatch, attends: bool = False) -> Launch:
    """Return the call of the joined kernel for a layer of `case` on an H100, with the attention of
    Gemma's sliding layers after it or without."""
    pytest.importorskip("triton", reason="triton is not installed")
    from eagle_aot.triton_kernels.layer_products import attention, kernel

    for module in OTHERS:
        monkeypatch.setattr(f"eagle_aot.triton_kernels.{module}.wrap_triton", Unlaunched)
    x, weights = case.rows(8, "meta"), case.weights("meta", 132, 32 * attends)
    exchanged = case.exchanged(weights, 32 * attends)
    if not attends:
        layer = *x, exchanged, *weights
        (call,) = launches(monkeypatch, kernel, lambda: kernel.launch(*layer), (9, 0))
        return call
    store, attend = attention_arguments(8, "meta")
    layer = *x, exchanged, *with_attention(weights, store, attend)
    (call,) = launches(
        monkeypatch, attention, lambda: attention.launch(layer, store, attend), (9, 0)
    )
    return call


def attention_arguments(rows: int, device: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what `layer_attention` takes after a layer: of one text with 32 heads."""

    def integers(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    angles = torch.zeros(2, 1, rows, 1, 256, device=device)
    norms, caches = (
        torch.zeros(2, *shape, dtype=torch.bfloat16, device=device)
        for shape in ((256,), (16, 2056, 256))
    )
    moves = integers(1, 16)
    store = *angles, *norms, *caches, integers(rows), moves, moves, 32, True, 1e-6
    attend = integers(1, rows), integers(1), integers(1, rows, 16), 2056, 1.0, 1024, 2048
    return store, attend


@pytest.mark.parametrize("attends", [False, True])
def test_both_kernels_have_the_same_arguments(
    attends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle_aot.triton_kernels.layer_products.kernel import SOURCE

    kernel = launched(WIDE, monkeypatch, attends).kernel
    assert kernel.arg_names == declared_names(SOURCE, kernel)


def test_torch_makes_no_kernel_of_its_own_for_a_shape() -> None:
    """As it does for numbers that are 1 or multiples of 16."""
    for blocks, splits in itertools.product((1, 64, 128, 1023, 1024, 2048, 4095), (1, 6, 16)):
        shape = packed_shape(blocks, blocks, splits)
        assert shape != 1 and shape % 16 and shape < 1 << 31
        assert (shape >> 1 & 0x1FFF, shape >> 14 & 0x1F) == (blocks, splits)
        assert 0 <= (shape >> 19) * splits - blocks < splits


def test_the_last_layer_has_no_product_after_it() -> None:
    """Its results are those of a layer whose next projections read its norm."""
    with_next = CASE.weights("cpu", 4)
    codes, scales, splits, *others = with_next
    last = codes[:3], scales[:3], splits[:3], *others
    x = CASE.rows(3, "cpu")
    _, *expected, _ = layer_products(*x, CASE.exchanged(with_next), *with_next)
    parts, *found, _ = layer_products(*x, CASE.exchanged(last), *last)
    assert parts.shape == (1, 1, 3, 128)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def macros_of_a_layer(**others: int | float) -> Macros:
    return {"HIDDEN": 512, "MLP": 512, "O_SPLITS": 2, "O_STEPS": 3} | others


def test_layers_have_macros_in_common() -> None:
    """Those that differ in their attentions alone; others have their own."""
    first, wide = macros_of_a_layer(), macros_of_a_layer(O_SPLITS=4, O_STEPS=2)
    layers = [first, wide, macros_of_a_layer(MLP=1024), first]
    heads: Macros = {"ATTENDS": 1, "HEADS": 8}
    others: Macros = {"ATTENDS": 1, "HEADS": 16}
    common = "HIDDEN=512 MLP=512 O_SPLITS=4 O_STEPS=3 ATTENDS=1 HEADS="
    own = "HIDDEN=512 MLP=1024 O_SPLITS=2 O_STEPS=3 ATTENDS=0"
    found = common_macros(layers, [heads, {}, {}, others])
    assert found == [f"{common}8", f"{common}8", own, f"{common}16"]
    assert {text.split()[-1] for text in common_macros(layers, [{}] * 4)} == {"ATTENDS=0"}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, of a CUDA toolkit")
@pytest.mark.parametrize(
    ("case", "attends"),
    [(WIDE, False), (SILU, False), (WIDE, True), (replace(WIDE, projected=0), False)],
)
def test_the_source_is_compiled_in_place_of_a_triton_kernel(
    case: LayerCase, attends: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    call = launched(case, monkeypatch, attends)
    binary = compiled_by_nvcc(call, monkeypatch)
    assert binary.metadata.name == "layer_products_kernel"
    assert binary.metadata.num_warps == 18 and binary.metadata.shared == op.SHARED
    spilled = local_memory(binary.asm["cubin"], tmp_path)
    assert spilled <= 16, "spilled registers take microseconds within the loop over slots"
    assert ".entry layer_products_kernel(" in binary.asm["ptx"]
    assert "layer_products/kernel.cu" in call.constants["CUDA"]


class Layer(torch.nn.Module):
    """A layer with its weights as parameters, as a program has them."""

    def __init__(self, case: LayerCase) -> None:
        super().__init__()
        self.arguments = list(case.weights("cpu", 4))
        for at in (0, 1, 3, 4):
            self.arguments[at] = [frozen(tensor) for tensor in self.arguments[at]]
            for number, parameter in enumerate(self.arguments[at]):
                self.register_parameter(f"weight_{at}_{number}", parameter)
        self.arguments[5] = self.scale = frozen(self.arguments[5])

    def forward(self, attended: Tensor, stream: Tensor) -> tuple[Tensor, ...]:
        exchanged = CASE.exchanged(tuple(self.arguments))
        return layer_products(attended, stream, exchanged, *self.arguments)[:3]


def frozen(tensor: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)


def test_few_rows_launch_one_kernel_and_more_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering copies nothing: a kernel that seemed to write a weight would get a copy of it."""
    from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core

    analyse_for_h100(monkeypatch)
    rows = torch.export.Dim("rows", min=1, max=40)
    shapes = {"attended": {1: rows}, "stream": {1: rows}}
    program = torch.export.export(
        Layer(CASE), CASE.rows(9, "cpu"), dynamic_shapes=shapes, strict=False
    )
    with applied(CUDA):  # as lowering does
        opened = program.run_decompositions({}, decompose_custom_triton_ops=True)
    wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
    calls = [node for node in opened.graph.nodes if node.target is wrapper]
    joined = calls[-1]
    assert "attended_ptr" in joined.kwargs["kwargs"]
    assert set(joined.kwargs["tensors_to_clone"]) == {f"{name}_ptr" for name in WRITTEN}
    grids = [
        [axis.meta["val"].node.expr for axis in call.kwargs["grid"][0] if isinstance(axis, Node)]
        for call in calls
    ]
    (symbol,) = {symbol for grid in grids for axis in grid for symbol in axis.free_symbols}
    for count in (1, 8, 9, 40):
        launched = [all(axis.subs({symbol: count}) > 0 for axis in grid) for grid in grids]
        assert launched[-1] is (count <= 8) and any(launched[:-1]) is (count > 8)
    reinplace_inplaceable_ops_core(opened.graph)
    assert all(not call.kwargs["tensors_to_clone"] for call in calls)
