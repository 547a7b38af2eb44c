"""Attention of prompts without a GPU: reference, operator and compiled kernel."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from eagle_aot.triton_kernels.device import H100
from eagle_aot.triton_kernels.sdpa_prompt import is_servable, sdpa_prompt
from eagle_aot.triton_kernels.sdpa_prompt.tiling import HEAD_DIMS, is_tileable
from support.kernels.compiled import (
    Launch,
    analyse_for_h100,
    launches,
    local_memory,
    prompt_attention,
)
from support.kernels.prompt_cases import Prompt
from support.kernels.sdpa_cases import Layer, relative_error

OPERATOR = torch.ops.eagle_aot.sdpa_prompt.default
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, database=None)
SHARED_MEMORY = 227 << 10
"""Maximum bytes of one program on an H100."""

SPILLED = 32
"""Maximum bytes per thread that are spilled around the loops, for heads of 512 elements."""

FLAT = Layer(8, 2, 64, 0, torch.float32)
RING = Layer(8, 2, 64, 16, torch.float32)


@SETTINGS
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (7, 7)]),
    head_dim=st.sampled_from([3, 16, 64]),
    window=st.one_of(st.just(0), st.integers(1, 40)),
    context=st.integers(0, 150),
    rows=st.integers(1, 90),
    sequence=st.integers(0, 2),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_the_cpu_operator_attends_to_the_visible_keys_of_each_row(
    heads: tuple[int, int],
    head_dim: int,
    window: int,
    context: int,
    rows: int,
    sequence: int,
    dtype: torch.dtype,
) -> None:
    layer = Layer(*heads, head_dim, window, dtype)
    prompt = Prompt(layer, context, rows, sequence, sequences=3)
    output = sdpa_prompt(*prompt.arguments())
    assert output.shape == (1, rows, heads[0], head_dim) and output.dtype == dtype
    error = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 6e-3}[dtype]
    assert relative_error(output, prompt.expected()) < error
    with_image = replace(prompt, images=((rows // 3, rows),))
    output = sdpa_prompt(*with_image.arguments(), with_image.last)
    assert relative_error(output, with_image.expected()) < error


@pytest.mark.parametrize("layer", [FLAT, RING], ids=str)
def test_the_operator_passes_opcheck(layer: Layer) -> None:
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(OPERATOR, Prompt(layer, 20, 9).arguments(), test_utils=tests)


def test_unsupported_shapes_are_refused() -> None:
    q, *others = Prompt(RING, 20, 98).arguments()
    with pytest.raises(RuntimeError, match="serves 97 rows"):
        sdpa_prompt(q, *others)
    with pytest.raises(RuntimeError, match="a prompt has one sequence"):
        sdpa_prompt(q[:, :8].expand(2, -1, -1, -1), *others)
    with pytest.raises(RuntimeError, match="and a ring a window"):
        sdpa_prompt(q[:, :8], *others[:-1], 0)
    with pytest.raises(RuntimeError, match="in a cache of"):
        sdpa_prompt(q[:, :8], *others[:-1], 1000)


def test_a_longer_ring_takes_a_longer_chunk() -> None:
    prompt = Prompt(RING, 50, 300, ring=316)
    assert relative_error(sdpa_prompt(*prompt.arguments()), prompt.expected()) < 2e-6


class Attention(nn.Module):
    """The operator as a method calls it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, cache: Tensor) -> Tensor:
        return sdpa_prompt(q, k, v, pos, cache, 0.125, 0, 0)


def traced() -> ExportedProgram:
    rows = Dim("rows", min=65, max=512)
    q, k, v, pos, cache, *_ = Prompt(FLAT, 0, 80).arguments()
    shapes = {1: rows}, None, None, {0: rows}, None
    return torch.export.export(Attention(), (q, k, v, pos, cache), dynamic_shapes=shapes)


def test_the_traced_operator_is_one_node_for_any_number_of_rows() -> None:
    calls = [n.target for n in traced().graph.nodes if n.op == "call_function"]
    assert calls.count(OPERATOR) == 1 and len(calls) == 1


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "held"),
    [(32, 4, 512, True), (32, 16, 256, True), (129, 1, 128, False), (32, 3, 128, False),
     (129, 1, 512, False), (32, 4, 96, False)],
)  # fmt: skip
def test_is_tileable_and_is_servable_know_the_supported_layers(
    heads: int, kv_heads: int, head_dim: int, held: bool
) -> None:
    assert is_tileable(heads, kv_heads, head_dim) == held
    assert is_servable(heads, torch.empty(kv_heads, 1, head_dim, dtype=torch.bfloat16)) == held
    assert not is_servable(heads, torch.empty(kv_heads, 1, head_dim))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "window", "ahead"), [
    (32, 4, 512, 0, False),  # Gemma 4 31B, full
    (32, 16, 256, 1024, False),  # Gemma 4 31B, sliding
    (32, 16, 256, 1024, True),  # with images
    (16, 16, 128, 0, True),  # its vision tower
    (32, 8, 128, 0, False),  # Llama
    (28, 4, 128, 0, False),
    (4, 2, 64, 64, False),  # the shipped target
    (4, 1, 128, 0, False),
    (4, 2, 16, 16, False),
])  # fmt: skip
def test_the_kernel_fits_an_h100(
    heads: int, kv_heads: int, head_dim: int, window: int, ahead: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    program = call_for(monkeypatch, heads, kv_heads, head_dim, window, ahead).compiled(H100)
    assert program.metadata.shared <= SHARED_MEMORY
    spilled = local_memory(program.asm["cubin"], tmp_path)
    assert spilled <= (SPILLED if head_dim == HEAD_DIMS[-1] else 0)
    assert "wgmma.mma_async" in program.asm["ptx"] and "mma.sync" not in program.asm["ptx"]


@pytest.mark.parametrize("kind", ["i64", "constexpr"])
@pytest.mark.parametrize("window", [0, 64])
def test_the_kernel_compiles_with_int64_or_constant_sizes(
    window: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AOTInductor passes unbounded sizes as int64 and sizes that are 1 as constants."""
    call = call_for(monkeypatch, 4, 2, 64, window)
    program = call.compiled(H100, rows="i64", of_cache=kind, slots="i64")
    narrow = call.compiled(H100)
    assert program.asm["ttgir"].count("x64xi64") == narrow.asm["ttgir"].count("x64xi64")


def call_for(
    monkeypatch: pytest.MonkeyPatch, heads: int, kv_heads: int, head_dim: int, window: int,
    ahead: bool = False,
) -> Launch:  # fmt: skip
    """Return the call of the kernel for a layer on an H100, with images if `ahead`."""
    kernel = pytest.importorskip("eagle_aot.triton_kernels.sdpa_prompt.kernel")
    layer = heads, kv_heads, head_dim, window, ahead
    (call,) = launches(monkeypatch, kernel, lambda: prompt_attention(kernel, *layer), H100)
    return call


def test_torch_sees_that_the_kernel_writes_only_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reads kernels with numbers for sizes; one that it cannot read writes all, it thinks."""
    analyse_for_h100(monkeypatch)
    from torch._higher_order_ops import triton_kernel_wrap

    from eagle_aot.triton_kernels.sdpa_prompt import kernel

    called: list[dict[str, Any]] = []

    class Recorded:
        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            return self.call

        def call(self, *args: Any, num_warps: int, num_stages: int, **constants: Any) -> None:
            names = kernel.sdpa_prompt_kernel.arg_names
            called.append(dict(zip(names, args, strict=False)) | constants)

    monkeypatch.setattr(kernel, "wrap_triton", lambda _: Recorded())
    kernel.launch(*Prompt(replace(RING, dtype=torch.bfloat16), 20, 9).arguments())
    names = "identify_mutated_tensors", "identify_accessed_tensors"  # in torch 2.11, and in 2.13
    (name,) = (name for name in names if hasattr(triton_kernel_wrap, name))
    found = getattr(triton_kernel_wrap, name)(kernel.sdpa_prompt_kernel, called[0], {})
    if hasattr(found, "read_writes"):  # since torch 2.12
        found = [write.name for write in found.read_writes.writes]
    assert found == ["out_ptr"]
