"""The attention operator: its arithmetic, what is traced, and on machines without triton too."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram

from eagle_aot.triton_kernels.sdpa_splitk import is_servable, sdpa_reference, sdpa_splitk
from support.sdpa_cases import Layer, relative_error

SPLITK = torch.ops.eagle_aot.sdpa_splitk.default
SETTINGS = settings(max_examples=100, deadline=None, derandomize=True, database=None)
LLAMA = Layer(8, 2, 64, 0, torch.float32)
RING = Layer(8, 2, 64, 16, torch.float32)


@SETTINGS
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (8, 1), (7, 7)]),
    head_dim=st.sampled_from([3, 5, 16, 64]),
    window=st.one_of(st.just(0), st.integers(8, 40)),
    anchor=st.integers(0, 150),
    rows=st.integers(1, 20),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_on_a_cpu_it_is_attention_over_what_a_row_sees(
    heads: tuple[int, int],
    head_dim: int,
    window: int,
    anchor: int,
    rows: int,
    dtype: torch.dtype,
) -> None:
    layer = Layer(*heads, head_dim, window, dtype)
    rows = min(rows, window + 1) if window else rows
    positions = list(range(anchor, anchor + rows))
    q, (k, v) = layer.queries(rows), layer.cache(positions, anchor + rows + 3, math.nan)
    output = sdpa_splitk(q, k, v, torch.tensor(positions), layer.scale, window)
    assert output.dtype == dtype and output.is_contiguous()
    bound = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 4e-3}[dtype]
    assert relative_error(output, layer.expected(q, k, v, positions)) < bound


def inputs(layer: Layer, rows: int, slots: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the first `rows` positions behind 20 others."""
    positions = list(range(20, 20 + rows))
    return layer.queries(rows), *layer.cache(positions, slots, 0.0), torch.tensor(positions)


class Attention(nn.Module):
    """A cache, written and attended to."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer
        _, k, v, _ = inputs(layer, 8)
        self.register_buffer("k", k)
        self.register_buffer("v", v)

    def forward(self, q: Tensor, input_pos: Tensor) -> Tensor:
        entries = q[:, :, : self.layer.kv_heads].transpose(1, 2)
        slots = torch.remainder(input_pos, self.k.shape[2])
        self.k.index_copy_(2, slots, entries)
        self.v.index_copy_(2, slots, -entries)
        layer = self.layer
        return sdpa_splitk(q * 2, self.k, self.v, input_pos, layer.scale, layer.window) + 1


def traced(layer: Layer, most: int = 8) -> ExportedProgram:
    q, _, _, input_pos = inputs(layer, 8)
    rows = Dim("rows", min=1, max=most)
    shapes = ({1: rows}, {0: rows})
    return torch.export.export(Attention(layer), (q, input_pos), dynamic_shapes=shapes, strict=True)


def calls(program: ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("layer", "most"), [(LLAMA, 8), (LLAMA, 512), (RING, 8), (RING, 17)], ids=str
)
def test_traced_it_is_one_node_for_all_numbers_of_rows(layer: Layer, most: int) -> None:
    program = traced(layer, most)
    assert [node.target for node in calls(program)].count(SPLITK) == 1
    ranges = [(int(r.lower), int(r.upper)) for r in program.range_constraints.values()]
    assert ranges == [(1, most)]
    for rows in (*range(1, 9), *(rows for rows in (9, 17, 40) if rows <= most)):
        q, _, _, input_pos = inputs(layer, rows)
        assert torch.equal(program.module()(q, input_pos), Attention(layer)(q, input_pos))


def test_the_node_survives_the_decompositions_of_a_lowering() -> None:
    assert SPLITK in [node.target for node in calls(traced(LLAMA).run_decompositions())]


def test_what_is_not_there_can_be_traced() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert SPLITK in [node.target for node in calls(traced(RING))]


@pytest.mark.parametrize("layer", [LLAMA, RING], ids=["flat", "ring"])
def test_it_is_a_well_formed_operator(layer: Layer) -> None:
    q, k, v, input_pos = inputs(layer, 3)
    arguments = (q, k, v, input_pos, layer.scale, layer.window)
    assert torch.equal(SPLITK(*arguments), sdpa_reference(*arguments))
    torch.library.opcheck(SPLITK, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("rows", "window", "message"),
    [
        (34, 32, "a ring for a window of 32 serves 33 rows"),
        (2, 31, "a ring for a window of 31 has 62 slots, not 64"),
    ],
)
def test_what_it_does_not_serve_is_refused(rows: int, window: int, message: str) -> None:
    tensors = inputs(LLAMA, rows)
    with pytest.raises(RuntimeError, match=message):
        SPLITK(*tensors, 1.0, window)
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match=message):
        SPLITK(*map(mode.from_tensor, tensors), 1.0, window)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype", "served"),
    [
        (32, 4, 512, torch.bfloat16, True),
        (28, 4, 128, torch.float16, True),
        (32, 4, 512, torch.float32, False),
        (32, 4, 96, torch.bfloat16, False),
        (64, 4, 512, torch.bfloat16, False),
    ],
)
def test_which_layers_have_a_kernel(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, served: bool
) -> None:
    q = torch.empty(1, 8, heads, head_dim, dtype=dtype)
    k = torch.empty(1, kv_heads, 16, head_dim, dtype=dtype)
    assert is_servable(q, k) == served
    assert not is_servable(q.repeat(2, 1, 1, 1), k)


class H100:
    """What Triton asks of a driver when it compiles; no GPU need be there."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@pytest.mark.parametrize(("window", "most"), [(0, 8), (0, 512), (16, 8), (16, 17)])
def test_lowered_for_a_gpu_it_is_two_kernels_that_copy_no_cache(
    monkeypatch: pytest.MonkeyPatch, window: int, most: int
) -> None:
    """Whatever a kernel is believed to write is copied before each call."""
    triton = pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(triton.runtime.driver, "_active", H100())
    program = traced(Layer(8, 2, 64, window, torch.bfloat16), most)
    opened = program.run_decompositions({}, decompose_custom_triton_ops=True)
    wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
    kernels = [node for node in calls(opened) if node.target is wrapper]
    written = [node.kwargs["tensors_to_clone"] for node in kernels]
    assert written == [["partial_ptr", "stats_ptr"], ["out_ptr"]]
    for node in kernels:
        assert node.kwargs["kwargs"]["rows"].target is torch.ops.aten.sym_size.int


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # importing it raises ImportError
import torch
from torch.export import Dim
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk

class Attention(torch.nn.Module):
    def forward(self, q, k, v, input_pos):
        return sdpa_splitk(q, k, v, input_pos, 1.0, 0)

cache = torch.ones(1, 2, 16, 4)
inputs = torch.ones(1, 4, 2, 4), cache, cache, torch.arange(4)
rows = Dim("rows", min=1, max=8)
shapes = {1: rows}, None, None, {0: rows}
program = torch.export.export(Attention(), inputs, dynamic_shapes=shapes, strict=True)
print([node.name for node in program.graph.nodes if node.op == "call_function"])
print(program.module()(*inputs).unique().tolist())
"""


def test_importing_tracing_and_running_on_a_cpu_need_no_triton() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True)
    assert run.stdout.split("\n") == ["['sdpa_splitk']", "[1.0]", ""], run.stderr
    assert "Triton not available" not in run.stderr  # what `triton_op` would say


KERNEL = "eagle_aot.triton_kernels.sdpa_splitk.kernel"
IMPORTED = f"import sys, eagle_aot.triton_kernels.sdpa_splitk; print({KERNEL!r} in sys.modules)"


def test_the_kernel_is_not_imported_before_it_is_needed() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr
