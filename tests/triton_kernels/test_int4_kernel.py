"""The INT4 kernels without a GPU, compiled for one."""

import re
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from eagle_aot.triton_kernels.device import H100
from eagle_aot.triton_kernels.int4_gemm import large_m, small_m
from eagle_aot.triton_kernels.int4_gemm.packing import blocks_per_step
from eagle_aot.triton_kernels.int4_gemm.tiling import SMALL_M_TILES, SmallMTile
from support.kernels.compiled import empty, int4_weight, launches

SHARED_MEMORY = 227 * 1024
"""Bytes that one program can have on an H100."""


def compiled(
    monkeypatch: pytest.MonkeyPatch, kernel: ModuleType, rows: int, group: int, zeros: bool,
    activation: str,
) -> Any:  # fmt: skip
    """Compile a kernel for an H100, for rows of a weight [43008, 5376]."""
    codes, scales, zero_points = int4_weight(group)
    weight = empty(1, rows, 5376), codes, scales, zero_points if zeros else None, 43008
    splits = (1,) if kernel is small_m else ()
    (call,) = launches(
        monkeypatch, kernel, lambda: kernel.launch(*weight, *splits, activation), H100
    )
    return call.compiled(H100)


def assert_read_as_it_lies(program: Any) -> None:
    """Check that threads exchange nothing but the output, and that the pipeline has all loads."""
    code = program.asm["ptx"]
    products = code[
        : max(code.rindex(product) for product in ("mma.sync", "wgmma") if product in code)
    ]
    assert "st.shared" not in products and "shfl" not in products
    graph = program.asm["ttgir"]
    loop = graph[graph.index("scf.for") :]
    assert "ttg.async_copy_global_to_local" in loop and "tt.load" not in loop


@pytest.mark.parametrize(
    ("group", "tile"),
    [(g, tile) for g in (32, 64, 128) for tile in dict.fromkeys(SMALL_M_TILES[blocks_per_step(g)])],
    ids=lambda case: str(getattr(case, "rows", case)),
)
@pytest.mark.parametrize(("zeros", "activation"), [(False, ""), (True, ""), (False, "gelu_tanh")])
def test_the_small_m_kernel_compiles_to_tensor_core_products_without_spilling(
    group: int, zeros: bool, activation: str, tile: SmallMTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled(monkeypatch, small_m, tile.rows, group, zeros, activation)
    if not activation:
        assert_read_as_it_lies(program)
    products = re.findall(
        r"(mma\.sync|wgmma\.mma_async)\S*\.m\d+n(\d+)k16\S*bf16", program.asm["ptx"]
    )
    # A product has 16 columns, and 16 rows of a warp or 64 rows of a group of four warps
    of_rows, widths = (16, [8]) if tile.rows == 8 else (64, [tile.first, tile.more])
    each = 128 // of_rows // (tile.warps if of_rows == 16 else tile.warps // 4)
    widths = [width for width in widths if width]
    assert {int(n) for _, n in products} == set(widths)
    assert len(products) == each * 8 * blocks_per_step(group) * len(widths)
    at_once = 3 if tile.rows < 32 else 8 // tile.warps  # programs of a multiprocessor
    assert program.metadata.shared * at_once < SHARED_MEMORY


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("zeros", "activation"), [(False, ""), (True, "silu")])
def test_the_large_m_kernel_compiles_to_tensor_core_products_without_spilling(
    group: int, zeros: bool, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled(monkeypatch, large_m, 512, group, zeros, activation)
    if not activation:
        assert_read_as_it_lies(program)
    assert "wgmma.mma_async" in program.asm["ptx"] and "mma.sync" not in program.asm["ptx"]
    assert program.metadata.shared < SHARED_MEMORY
