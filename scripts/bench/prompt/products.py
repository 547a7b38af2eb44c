"""INT4 products of many rows: this project's kernel by tiles, beside dense ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.int4.linears import Linear, dense, dequantised
from bench.int4.measure import exact_product, random_weight
from bench.int4.shapes import SHAPES, Shape
from bench.sdpa.measure import first_line
from eagle_aot.targets.int4 import Int4Weight
from eagle_aot.triton_kernels.int4_gemm.large_m import launch
from eagle_aot.triton_kernels.int4_gemm.product_tiles import ProductTile
from shared.graph_timing import copies_past_l2, median_us

Maker = Callable[[Int4Weight], Linear]
SWEPT = ("qkv sliding", "down")
"""One weight of many features, one of many columns."""

PROMPT_SHAPES = SHAPES[:-1]  # the output table is for the last row alone


@dataclass(frozen=True, slots=True)
class Product:
    """Microseconds by number of rows; `error` is relative to the weight not rounded."""

    shape: Shape
    group: int
    name: str
    us: dict[int, float]
    error: float


def tiled(tile: ProductTile | None) -> Maker:
    """The kernel with a tile, the chosen one for None."""

    def make(weight: Int4Weight) -> Linear:
        packed = weight.pack()
        factors = packed.codes, packed.scales, packed.zeros, packed.rows
        return lambda x: launch(x, *factors, "", tile)

    return make


def tiles(group: int) -> dict[str, Maker]:
    """What is swept: the chosen tile, and others that fit."""
    single = group == 128
    shapes = [(2, 128, 8, 3), (2, 128, 8, 4), (1, 256, 8, 2), (1, 256, 8, 3)]
    others = {
        f"{128 * n} x {m}, {stages} stages{', by block' if single else ''}": tiled(
            ProductTile(n, m, warps, stages, by_block=single)
        )
        for n, m, warps, stages in shapes
        if single or (n, m, stages) != (2, 128, 3)  # which is the chosen one
    }
    return {"chosen": tiled(None), **others}


PEERS: Mapping[str, Maker] = {"dequantised, cuBLAS": dequantised, "cuBLAS, bf16": dense}


def measure(
    shape: Shape, group: int, makers: Mapping[str, Maker], rows: Sequence[int], notes: set[str]
) -> list[Product]:
    """Every maker over one random weight, whose copies exceed L2; one that fails says why."""
    weight, found = random_weight(shape, group), []
    inputs = {m: torch.randn(m, shape.k, device=weight.qdata.device).bfloat16() for m in rows}
    exact = exact_product(weight, inputs[rows[0]])
    for name, make in makers.items():
        try:
            linears = [make(weight) for _ in range(copies_past_l2(shape.nbytes(group)))]
            us = {
                m: median_us([partial(linear, x) for linear in linears]) for m, x in inputs.items()
            }
            error = relative(linears[0](inputs[rows[0]]), exact)
            found.append(Product(shape, group, name, us, error))
        except Exception as error:  # compilers have no common base for theirs
            notes.add(f"{name}, {shape.name}, group {group}: {first_line(error)}")
        torch.cuda.empty_cache()
    return found


def relative(output: Tensor, exact: Tensor) -> float:
    """Of `||output - exact||`, over the columns that `exact` has."""
    return float((output[:, : exact.shape[1]].float() - exact).norm() / exact.norm())


def forward_ms(found: Sequence[Product], group: int, name: str, rows: int) -> float | None:
    """All products of a forward of 60 layers, where every shape was measured."""
    times = {p.shape: p.us[rows] for p in found if (p.group, p.name) == (group, name)}
    if len(times) < len(PROMPT_SHAPES):
        return None
    return sum(shape.per_forward * us for shape, us in times.items()) / 1e3
