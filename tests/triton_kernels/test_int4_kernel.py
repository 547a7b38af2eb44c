"""The INT4 kernels without a GPU, compiled for one."""

import re
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from eagle_aot.triton_kernels.int4_gemm import large_m, small_m  # noqa: E402
from eagle_aot.triton_kernels.int4_gemm.packing import BLOCK_K, blocks_per_step  # noqa: E402
from eagle_aot.triton_kernels.int4_gemm.tiling import (  # noqa: E402
    LARGE_M_TILES,
    SMALL_M_TILES,
    LargeMTile,
)

H100 = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024
"""Bytes that one program can have on an H100."""


def compiled(
    kernel: Any,
    warps: int,
    n: int,
    k: int,
    group: int,
    zeros: bool,
    activation: str,
    **constants: object,
) -> Any:
    """A kernel compiled for an H100, as its launch would."""
    blocks = blocks_per_step(group)
    total = -(-k // (BLOCK_K * blocks))
    constants |= {
        **{"N": n, "K": k, "GROUP": group, "BLOCKS": blocks, "TOTAL": total, "STEPS": total},
        **{"ZEROS": zeros, "ACTIVATION": activation, "PTX": 9},
    }
    pointers = dict.fromkeys(("x_ptr", "scales_ptr", "zeros_ptr", "out_ptr"), "*bf16")
    kinds = {**pointers, "codes_ptr": "*i16", "rows": "i32"}
    source = ASTSource(
        fn=kernel,
        signature={name: kinds.get(name, "constexpr") for name in kernel.arg_names},
        constexprs={name: constants[name] for name in kernel.arg_names if name in constants},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(5)},
    )
    return triton.compile(source, target=H100, options={"num_warps": warps})


def assert_read_as_it_lies(program: Any) -> None:
    """Nothing but the output is exchanged between threads, and the pipeline holds all loads."""
    code = program.asm["ptx"]
    products = code[
        : max(code.rindex(product) for product in ("mma.sync", "wgmma") if product in code)
    ]
    assert "st.shared" not in products and "shfl" not in products
    graph = program.asm["ttgir"]
    loop = graph[graph.index("scf.for") :]
    assert "ttg.async_copy_global_to_local" in loop and "tt.load" not in loop


@pytest.mark.parametrize("kind", range(5), ids=("8", "16", "32", "48", "64"))
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("zeros", "activation"), [(False, ""), (True, ""), (False, "gelu_tanh")])
def test_the_small_m_kernel_compiles_to_tensor_core_products_without_spilling(
    group: int, zeros: bool, activation: str, kind: int
) -> None:
    tile = SMALL_M_TILES[blocks_per_step(group)][kind]
    program = compiled(
        *(small_m.int4_small_m_kernel, tile.warps, 43008, 5376, group, zeros, activation),
        STAGES=tile.stages,
        ROWS=tile.first,
        MORE=tile.more,
        PAIRS=tile.pairs,
        WHOLE=tile.whole,
    )
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


TILES = [(group, LARGE_M_TILES[227][blocks_per_step(group)]) for group in (32, 64, 128)]


@pytest.mark.parametrize(("group", "tile"), TILES, ids=str)
@pytest.mark.parametrize(("zeros", "activation"), [(False, ""), (True, "silu")])
def test_the_large_m_kernel_compiles_to_tensor_core_products_without_spilling(
    group: int, tile: LargeMTile, zeros: bool, activation: str
) -> None:
    program = compiled(
        *(large_m.int4_large_m_kernel, tile.warps, 43008, 5376, group, zeros, activation),
        STAGES=tile.stages,
        TILES=tile.tiles,
        BLOCK_M=tile.rows,
        BY_BLOCK=tile.by_block,
    )
    if not activation:
        assert_read_as_it_lies(program)
    assert "wgmma.mma_async" in program.asm["ptx"] and "mma.sync" not in program.asm["ptx"]
    assert program.metadata.shared < SHARED_MEMORY
