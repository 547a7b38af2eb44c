"""Linears to compare, each made of one canonical INT4 weight."""

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from eagle_aot.export.lowering.backend import multiprocessors
from eagle_aot.targets.int4 import Int4Weight
from eagle_aot.triton_kernels.int4_gemm import (
    choose_splits,
    dequantise_int4,
    int4_linear_reference,
)
from eagle_aot.triton_kernels.int4_gemm.op import int4_large_m, int4_small_m

Linear = Callable[[Tensor], Tensor]
"""x bfloat16 [M, K] -> [M, N]."""

INNER_K_TILES = 8
MARLIN_GROUP = 128
MARLIN_PARTS = 16  # of 64 rows, that it runs side by side at most


def parts_of(weight: Int4Weight) -> Linear:
    """The small-M kernel alone: [splits, M, N]."""
    packed = weight.pack()
    splits = choose_splits(packed.rows, packed.scales.shape[1], multiprocessors())
    codes, scales, zeros, rows = packed.codes, packed.scales, packed.zeros, packed.rows
    return lambda x: int4_small_m(x, codes, scales, zeros, rows, splits, "")


def few_rows(weight: Int4Weight) -> Linear:
    """The small-M kernel, its parts added by a kernel of their own."""
    parts = parts_of(weight)

    def linear(x: Tensor) -> Tensor:
        product = parts(x)
        return product[0] if product.dtype == x.dtype else added(product)

    return linear


@torch.compile(dynamic=False)
def added(parts: Tensor) -> Tensor:
    return parts.sum(0).bfloat16()


def many_rows(weight: Int4Weight) -> Linear:
    """The large-M kernel."""
    packed = weight.pack()
    codes, scales, zeros, rows = packed.codes, packed.scales, packed.zeros, packed.rows
    return lambda x: int4_large_m(x, codes, scales, zeros, rows, "")


def tinygemm(weight: Int4Weight) -> Linear:
    """torch's own: codes in its tiles, zero points as offsets `(8 - zero) * scale`."""
    q = weight.qdata
    swapped = ((q & 0xF) << 4) | (q >> 4)
    tiles = torch.ops.aten._convert_weight_to_int4pack(swapped, INNER_K_TILES)
    offset = (8 - weight.zero_point.float()) * weight.scale.float()
    scale_and_zero = torch.stack((weight.scale, offset.bfloat16()), dim=-1).contiguous()
    group = weight.group_size
    return lambda x: torch.ops.aten._weight_int4pack_mm(x, tiles, group, scale_and_zero)


def gemlite(weight: Int4Weight) -> Linear:
    """gemlite with the configuration it ships for this GPU."""
    from gemlite.helper import A16W4_HQQ_INT

    codes = torch.stack((weight.qdata & 0xF, weight.qdata >> 4), dim=-1).flatten(1)
    per_group = (t.t().reshape(-1, 1).contiguous() for t in (weight.scale, weight.zero_point))
    return A16W4_HQQ_INT(device="cuda", dtype=torch.bfloat16).from_weights(codes, *per_group)


def marlin(weight: Int4Weight) -> Linear:
    """Marlin as optimum-quanto compiles it, for float16 in groups of 128: a scale, and the zero
    point times it, with the sign turned. Raises ValueError for other groups."""
    if weight.group_size != MARLIN_GROUP:
        raise ValueError(f"has groups of {MARLIN_GROUP} only")
    from optimum.quanto.library.extensions import cuda  # noqa: F401, registers the operator
    from optimum.quanto.tensor.weights.marlin import marlin_permute

    codes = torch.stack((weight.qdata & 0xF, weight.qdata >> 4), dim=-1).flatten(1)
    scale, zero = weight.scale.float(), weight.zero_point.float()
    per_group = [marlin_permute(t.half().contiguous()) for t in (scale, -scale * zero)]
    parts = weight.shape[0] // MARLIN_GROUP * MARLIN_PARTS
    busy = torch.zeros(parts, dtype=torch.int32, device=codes.device)
    arguments = marlin_words(codes), *per_group, busy
    return lambda x: torch.ops.quanto.gemm_f16i4_marlin(half(x), *arguments)


def marlin_words(codes: Tensor) -> Tensor:
    """uint8 [N, K] -> int32 [K / 16, 2 N], as quanto's own `pack` makes them on the host."""
    from optimum.quanto.tensor.weights.marlin.int4.packed import _perm

    n, k = codes.shape
    tiles = codes.t().reshape(k // 16, 16, n // 16, 16).transpose(1, 2)
    turned = tiles.reshape(-1, len(_perm))[:, _perm.to(codes.device)].view(k // 16, 16 * n)
    return (turned[:, 0::2] | turned[:, 1::2] << 4).view(torch.int32)


@lru_cache(maxsize=1)
def half(x: Tensor) -> Tensor:
    """In float16, made once for each x: it is nothing that a linear takes time for."""
    return x.half()


def dense(weight: Int4Weight) -> Linear:
    """cuBLAS over the weight in bfloat16."""
    matrix = dequantise_int4(weight.qdata, weight.scale, weight.zero_point).t()
    return lambda x: x @ matrix


def dequantised(weight: Int4Weight) -> Linear:
    """The weight written to memory in bfloat16 by a fused kernel, then cuBLAS."""
    compiled = torch.compile(int4_linear_reference, dynamic=False)
    return lambda x: compiled(x, weight.qdata, weight.scale, weight.zero_point)


def peers() -> dict[str, Callable[[Int4Weight], Linear]]:
    """What few rows are compared with, as far as it is installed."""
    found: dict[str, Callable[[Int4Weight], Linear]] = {"tinygemm": tinygemm}
    if find_spec("gemlite"):
        found["gemlite"] = gemlite
    if find_spec("optimum") and find_spec("optimum.quanto"):
        found["Marlin"] = marlin
    return found | {"bf16": dense}
