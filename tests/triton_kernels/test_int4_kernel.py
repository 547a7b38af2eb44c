"""The INT4 kernel without a GPU: interpreted, compiled to PTX, and its choice of tiles."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

triton = pytest.importorskip("triton", reason="triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from eagle_aot.triton_kernels.int4_gemm import kernel  # noqa: E402

H100 = GPUTarget("cuda", 90, 32)
SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)


# Triton 3.6 does not interpret with numpy 2.4 and later, which a GPU machine may have.
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU tests run the compiled kernel")
def test_interpreted_it_computes_the_product_row_by_row() -> None:
    suite = Path(__file__).with_name("interpreted_int4_gemm.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(suite)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=suite.parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout + run.stderr


def compiled(n: int, k: int, group: int, dtype: str, stages: int) -> str:
    """The PTX of the product for an H100."""
    walk = kernel.tiling(n, k, group)
    constants = {
        **{"N": n, "K": k, "GROUP": group, "HALF": walk.half, "STEPS": walk.steps},
        "BLOCK_N": kernel.BLOCK_N,
    }
    floats = dict.fromkeys(("x_ptr", "scale_ptr", "zero_ptr"), f"*{dtype}")
    out = "*fp32" if walk.splits > 1 else f"*{dtype}"
    kinds = {**floats, "qdata_ptr": "*u8", "out_ptr": out, "rows": "i32"}
    kinds |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=kernel.int4_small_m_kernel,
        signature={name: kinds[name] for name in kernel.int4_small_m_kernel.arg_names},
        constexprs=constants,
    )
    options = {"num_warps": 4, "num_stages": stages}
    ptx: str = triton.compile(source, target=H100, options=options).asm["ptx"]
    return ptx


@pytest.mark.parametrize(
    ("n", "k", "group"), [(5376, 21504, 128), (1024, 5376, 32), (37, 64, 16), (8, 96, 48)]
)
@pytest.mark.parametrize(("dtype", "kind"), [("bf16", "bf16"), ("fp16", "f16")])
def test_half_precision_uses_tensor_cores_with_float32_sums(
    n: int, k: int, group: int, dtype: str, kind: str
) -> None:
    ptx = compiled(n, k, group, dtype, 4)
    products = re.findall(r"mma\.sync\S+", ptx)
    assert products and all(p.endswith(f".f32.{kind}.{kind}.f32") for p in products)


def test_float32_is_not_rounded_to_tensorfloat() -> None:
    ptx = compiled(1024, 5376, 128, "fp32", 2)
    assert "fma.rn.f32" in ptx and "mma" not in ptx and "tf32" not in ptx


@SETTINGS
@given(
    n=st.integers(1, 300_000),
    groups=st.integers(1, 200),
    group=st.integers(1, 200).map(lambda half: 2 * half),
)
def test_every_step_belongs_to_one_program_of_the_split(n: int, groups: int, group: int) -> None:
    walk = kernel.tiling(n, groups * group, group)
    total = groups * -(-group // 2 // walk.half)
    assert (walk.splits - 1) * walk.steps < total <= walk.splits * walk.steps
    assert kernel.MIN_HALF <= walk.half <= kernel.MAX_HALF
    assert (group // 2) % walk.half == 0 or walk.half == kernel.MIN_HALF


@pytest.mark.parametrize(
    ("n", "k", "splits"), [(1024, 5376, 14), (5376, 21504, 6), (16384, 5376, 2), (43008, 5376, 1)]
)
def test_narrow_weights_are_split_so_that_the_gpu_is_full(n: int, k: int, splits: int) -> None:
    assert kernel.tiling(n, k, 128).splits == splits
