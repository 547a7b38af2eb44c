"""The dense linear of few rows without a GPU: its operator, its kernel compiled."""

import re

import pytest
import torch

from eagle_aot.triton_kernels.dense_gemm.op import dense_small_m
from eagle_aot.triton_kernels.dense_gemm.tiling import DENSE_TILES, STEP, DenseTile, choose_splits
from support.kernels.compiled import ptx_for_h100
from support.kernels.dense_cases import assert_product, factors

SHARED_MEMORY = 227 * 1024
"""Bytes of a multiprocessor of an H100."""


@pytest.mark.parametrize("splits", [1, 3])
def test_the_cpu_operator_computes_the_product(splits: int) -> None:
    x, weight = factors(5, 70, 320)
    parts = dense_small_m(x, weight, splits)
    assert parts.shape == (splits, 1, 5, 70)
    assert_product(parts, x, weight)
    torch.library.opcheck(
        dense_small_m, (x, weight, splits), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("tile", DENSE_TILES, ids=str)
def test_the_kernel_compiles_to_tensor_core_products(tile: DenseTile) -> None:
    kernel = pytest.importorskip("eagle_aot.triton_kernels.dense_gemm.kernel")
    kinds = {"x_ptr": "*bf16", "weight_ptr": "*bf16", "out_ptr": "*fp32", "rows": "i32"}
    constants = {
        **{"N": 5376, "K": 21504, "PART": 3584, "ROWS": tile.rows, "FEATURES": tile.features},
        **{"COLUMNS": tile.columns, "STAGES": tile.stages},
    }
    ptx = ptx_for_h100(kernel.dense_small_m_kernel, kinds, constants, {"num_warps": kernel.WARPS})
    products = set(re.findall(r"(?:mma\.sync|wgmma\.mma_async)\S*\.m\d+n(\d+)k16\S*bf16", ptx))
    assert products == {str(tile.rows)}
    in_flight = tile.stages * 2 * tile.columns * (tile.features + tile.rows)
    assert 2 * in_flight < SHARED_MEMORY  # two programs fit at once and hide each other's latency


@pytest.mark.parametrize(
    ("features", "columns", "splits"),
    [(262144, 5376, 1), (32000, 5376, 1), (5376, 21504, 6), (4096, 10752, 8), (64, 100, 1)],
)
def test_k_is_split_until_a_gpu_is_full(features: int, columns: int, splits: int) -> None:
    assert choose_splits(features, columns, 132) == splits


def test_no_split_is_empty() -> None:
    for columns in range(8, 40 * STEP, 72):
        steps = -(-columns // STEP)
        splits = choose_splits(16, columns, 132)
        assert (splits - 1) * -(-steps // splits) < steps
