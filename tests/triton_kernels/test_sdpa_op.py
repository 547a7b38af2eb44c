"""The attention operator: its arithmetic, and its traced and lowered graphs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram

from eagle_aot.export.lowering.patches import CUDA, applied
from eagle_aot.triton_kernels.kv_int8 import quantize_entries
from eagle_aot.triton_kernels.sdpa_splitk import (
    is_servable,
    sdpa_reference,
    sdpa_splitk,
    visible_slots,
)
from support.kernels.compiled import analyse_for_h100
from support.kernels.sdpa_cases import Layer, Text, chain, forward, relative_error, tree

SPLITK = torch.ops.eagle_aot.sdpa_splitk.default
SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, database=None)
LLAMA = Layer(8, 2, 64, 0, torch.float32)
RING = Layer(8, 2, 64, 16, torch.float32)
BFLOAT16 = Layer(8, 2, 64, 0, torch.bfloat16)


@st.composite
def texts(draw: st.DrawFn) -> Text:
    """Draw chains, and trees no deeper than a tail, in slots that are all different."""
    context, first_token = draw(st.integers(0, 150)), draw(st.integers(0, 1000))
    if draw(st.booleans()):
        return chain(context, draw(st.integers(1, 20)), first_token)
    rows = draw(st.integers(1, 16))
    parents = [draw(st.integers(-1, row - 1)) for row in range(rows)]
    return tree(context, parents, draw(st.permutations(range(64)))[:rows], first_token)


@SETTINGS
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (8, 1), (7, 7)]),
    head_dim=st.sampled_from([3, 5, 16, 64]),
    window=st.one_of(st.just(0), st.integers(1, 40)),
    run=st.lists(texts(), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    padding=st.integers(0, 2),
    data=st.data(),
)
def test_the_cpu_operator_attends_to_the_visible_keys_of_each_row(
    heads: tuple[int, int],
    head_dim: int,
    window: int,
    run: list[Text],
    dtype: torch.dtype,
    padding: int,
    data: st.DataObject,
) -> None:
    layer = Layer(*heads, head_dim, window, dtype)
    rows = padding + max(len(text.rows) for text in run)
    caches = data.draw(st.permutations(range(4)))[: len(run)]
    case = forward(layer, *run, rows=rows, caches=caches)
    output = sdpa_splitk(*case.arguments)
    assert output.dtype == dtype and output.is_contiguous()
    bound = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 4e-3}[dtype]
    assert relative_error(output, case.expected()) < bound
    for b, text in enumerate(run):
        row = data.draw(st.integers(0, len(text.rows) - 1))
        alone = sdpa_splitk(*forward(layer, text.only(row)).arguments)
        assert torch.equal(alone[0, 0], output[b, row])


NONE = [-1] * 16


@pytest.mark.parametrize(("position", "tail", "window", "ring", "seen"), [
    (0, [*NONE[1:], 0], 0, 0, [0]),
    (1, [*NONE[2:], 0, 9], 0, 0, [0, 9]),
    (17, [*range(2, 15), 20, 19, 18], 0, 0, [0, 1, *range(2, 15), 20, 19, 18]),
    (17, [*range(2, 15), 20, 19, 18], 2, 98, [19, 18]),
    (17, [*range(2, 18)], 17, 113, [*range(1, 18)]),
    (200, [*range(185, 201)], 18, 114, [69, 70, *range(71, 87)]),
    (3, [*NONE[4:], 0, 1, 2, 3], 2, 98, [2, 3]),
])  # fmt: skip
def test_visible_slots_are_in_order_of_position(
    position: int, tail: list[int], window: int, ring: int, seen: list[int]
) -> None:
    assert visible_slots(position, torch.tensor(tail), window, ring).tolist() == seen


Rows = tuple[Tensor, Tensor, Tensor, Tensor]


def rows_of(layer: Layer, sequences: int, rows: int) -> Rows:
    """Return q, positions, sequences and tail of chains of different lengths."""
    case = forward(layer, *(chain(20 * b + 5, rows, 100 * b) for b in range(sequences)))
    return case.q, case.positions, case.sequences, case.tail


class Attention(nn.Module):
    """Writes to caches and attends to them."""

    k: Tensor
    v: Tensor

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer
        case = forward(layer, *(chain(300, 1) for _ in range(4)), hidden=0.0)
        self.register_buffer("k", case.k)
        self.register_buffer("v", case.v)

    def forward(self, q: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor) -> Tensor:
        entries = q[:, :, : self.layer.kv_heads].flatten(0, 1).transpose(0, 1)
        layer, length = self.layer, self.k.shape[2]
        entries = quantize_entries(entries) if layer.int8 else entries
        slots = positions % layer.ring if layer.window else positions
        row_slots = (sequences.unsqueeze(-1) * length + slots).flatten()
        for cache in (self.k, self.v):
            cache.flatten(1, 2).index_copy_(1, row_slots, entries)
        attended = sdpa_splitk(
            q * 2, self.k, self.v, positions, sequences, tail, layer.scale, layer.window, layer.ring
        )
        return attended + 1


def traced(layer: Layer, max_rows: int = 64) -> ExportedProgram:
    """Trace `Attention` for up to 4 sequences of up to `max_rows` rows."""
    b, t = Dim("sequences", min=1, max=4), Dim("rows", min=1, max=max_rows)
    shapes = ({0: b, 1: t}, {0: b, 1: t}, {0: b}, {0: b, 1: t})
    inputs = rows_of(layer, 2, 8)
    return torch.export.export(Attention(layer), inputs, dynamic_shapes=shapes, strict=True)


def calls(program: ExportedProgram) -> list[Any]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("layer", [LLAMA, RING], ids=["flat", "ring"])
def test_the_traced_operator_is_one_node_for_any_rows_and_sequences(layer: Layer) -> None:
    program = traced(layer)
    assert [node.target for node in calls(program)].count(SPLITK) == 1
    ranges = {(int(r.lower), int(r.upper)) for r in program.range_constraints.values()}
    assert ranges == {(1, 4), (1, 64)}
    for sequences, rows in ((1, 1), (1, 2), (2, 1), (3, 5), (4, 16), (1, 64)):
        inputs = rows_of(layer, sequences, rows)
        assert torch.equal(program.module()(*inputs), Attention(layer)(*inputs))


def test_decompositions_keep_the_operator() -> None:
    assert SPLITK in [node.target for node in calls(traced(LLAMA).run_decompositions())]


def test_fake_tensors_can_be_traced() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert SPLITK in [node.target for node in calls(traced(RING))]


@pytest.mark.parametrize("layer", [LLAMA, RING], ids=["flat", "ring"])
def test_the_operator_passes_opcheck_and_equals_the_reference(layer: Layer) -> None:
    case = forward(layer, chain(20, 3), tree(3, [-1, 0, 0]), hidden=0.0)
    assert torch.equal(SPLITK(*case.arguments), sdpa_reference(*case.arguments))
    torch.library.opcheck(SPLITK, case.arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(("tail", "window", "ring", "message"), [
    (15, 0, 0, "a tail has 16 slots, not 15"),
    (16, 32, 0, "a window needs a ring, and a ring a window"),
    (16, 0, 64, "a window needs a ring, and a ring a window"),
    (16, 32, 641, "a ring of 641 slots for a window of 32 in a cache of 640"),
    (16, 32, 31, "a ring of 31 slots for a window of 32 in a cache of 640"),
    (16, 32, 33, "a ring of 33 slots for a window of 32 serves 2 rows"),
])  # fmt: skip
def test_unsupported_shapes_are_refused(tail: int, window: int, ring: int, message: str) -> None:
    q, k, v, positions, sequences, slots, *_ = forward(LLAMA, chain(20, 3)).arguments
    tensors = q, k, v, positions, sequences, slots[:, :, :tail]
    with pytest.raises(RuntimeError, match=message):
        SPLITK(*tensors, 1.0, window, ring)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
        SPLITK(*map(mode.from_tensor, tensors), 1.0, window, ring)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "dtype", "served"), [
    (32, 4, 512, torch.bfloat16, True),
    (28, 4, 128, torch.float16, True),
    (32, 4, 512, torch.float32, False),
    (32, 4, 96, torch.bfloat16, False),
    (64, 4, 512, torch.bfloat16, False),
])  # fmt: skip
def test_is_servable_knows_the_supported_layers(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, served: bool
) -> None:
    k = torch.empty(kv_heads, 3, 16, head_dim, dtype=dtype)
    assert is_servable(heads, k) == served
    assert not is_servable(heads, k.to(torch.float64))


@pytest.mark.parametrize(
    ("layer", "max_rows"),
    [
        (BFLOAT16, 64),
        (BFLOAT16, 512),
        (replace(BFLOAT16, window=16), 64),
        (replace(BFLOAT16, head_dim=512), 64),  # prefetches tiles
        (replace(BFLOAT16, int8=True), 64),
        (replace(BFLOAT16, window=16, int8=True), 64),
        (replace(BFLOAT16, by_token=True), 64),
    ],
    ids=str,
)
def test_the_lowered_operator_is_two_kernels_that_copy_no_cache(
    monkeypatch: pytest.MonkeyPatch, layer: Layer, max_rows: int
) -> None:
    """An argument that seems written would be copied before each call."""
    analyse_for_h100(monkeypatch)
    program = traced(layer, max_rows)
    with applied(CUDA):  # as lowering does
        opened = program.run_decompositions({}, decompose_custom_triton_ops=True)
    wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
    kernels = [node for node in calls(opened) if node.target is wrapper]
    written = [node.kwargs["tensors_to_clone"] for node in kernels]
    assert written[-2:] == [["partial_ptr", "stats_ptr"], ["out_ptr"]]
    assert written[:-2] == ([["entries_ptr"]] if layer.int8 else [])
    sizes = kernels[-2].kwargs["kwargs"]
    for name in ("batch", "rows"):
        assert sizes[name].target is torch.ops.aten.sym_size.int
