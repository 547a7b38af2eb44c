"""The linear over a packed INT4 weight, and its dispatch between few and many rows.

Up to `MATVEC_MAX_M` rows a linear is bound by reading its weight and uses the small-M kernel; above
that, the large-M kernel. The choice is made while a graph is traced, from the *range* of its row
count, and a range on both sides of the limit is an error, so a method is exported for one side. The
small-M kernel takes any number of rows and reads the weight once per tile of them; a row's bits do
not depend on their number.
"""

from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm.op import int4_large_m, int4_small_m
from eagle_aot.triton_kernels.int4_gemm.packing import TILE_N
from eagle_aot.triton_kernels.int4_gemm.reference import gated

MATVEC_MAX_M = 4
"""Most rows that use the small-M kernel; `set_matvec_max_m` raises it for one export."""

PROGRAMS_PER_MULTIPROCESSOR = 2
"""Programs that keep enough reads in flight, measured on an H100."""

MAX_SPLITS = 8

SPLIT_COST = 0.06
"""Cost of another part, for its sums and for reading x again, relative to the product."""

FULL, FULL_IF_GATED = 0.95, 0.7
"""The share of a GPU's programs, `PROGRAMS_PER_MULTIPROCESSOR`, that tiles must fill for a product
not to be split. Parts of a gated unit cost a launch more, and keep its layer from being one kernel.
"""


def set_matvec_max_m(rows: int) -> int:
    """Set `MATVEC_MAX_M` and return its previous value. Raises ValueError below 1."""
    global MATVEC_MAX_M
    if rows < 1:
        raise ValueError(f"MATVEC_MAX_M must be at least 1, got {rows}")
    previous, MATVEC_MAX_M = MATVEC_MAX_M, rows
    return previous


def choose_splits(features: int, steps: int, multiprocessors: int, full: float = FULL) -> int:
    """Return how many programs to split K among, so that the tiles of `features` fill a GPU evenly.

    `steps` is the number of K steps (`scales.shape[1]` of a packed weight). Every program has at
    least one step. Tiles that fill `full` of the GPU are not split.
    """
    tiles = -(-features // TILE_N)
    possible = [splits for splits in range(1, MAX_SPLITS + 1) if none_is_idle(splits, steps)]
    enough = PROGRAMS_PER_MULTIPROCESSOR * multiprocessors
    if tiles >= full * enough:
        return 1
    filling = [splits for splits in possible if tiles * splits >= FULL * enough]

    def cost(splits: int) -> float:
        slowest = -(-tiles * splits // multiprocessors) * -(-steps // splits)
        return slowest * multiprocessors / (tiles * steps) + SPLIT_COST * splits

    return min(filling, key=cost) if filling else possible[-1]


def none_is_idle(splits: int, steps: int) -> bool:
    """Whether every program has a step if each takes the same number, rounded up."""
    return (splits - 1) * -(-steps // splits) < steps


def int4_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, features: int, splits: int
) -> Tensor:
    """Multiply `x` [1, M, K]: [1, M, features] in x's dtype; other arguments as in `op.py`."""
    parts = int4_linear_parts(x, codes, scales, zeros, features, splits)
    return parts.flatten(0, 1) if parts.shape[0] == 1 else parts.sum(0).to(x.dtype)


def int4_linear_parts(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor | None, features: int, splits: int
) -> Tensor:
    """Multiply `x` [1, M, K] in parts to be added: float32 [splits, 1, M, features].

    A single part is the product in x's dtype, [1, 1, M, features].
    """
    if x.shape[-2] > MATVEC_MAX_M:
        return int4_large_m(x, codes, scales, zeros, features, "").unsqueeze(0)
    return int4_small_m(x, codes, scales, zeros, features, splits, "")


def int4_gated_linear(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    features: int,
    splits: int,
    activation: str,
) -> Tensor:
    """Apply a gated unit to `x` [1, M, K]: `act(gate) * up`, [1, M, features / 2] in x's dtype.

    `features` counts gate and up rows, which alternate as in `op.py`.
    """
    if x.shape[-2] > MATVEC_MAX_M:
        return int4_large_m(x, codes, scales, zeros, features, activation)
    if splits == 1:
        return int4_small_m(x, codes, scales, zeros, features, 1, activation).flatten(0, 1)
    product = int4_linear(x, codes, scales, zeros, features, splits)
    return gated(product, activation)
