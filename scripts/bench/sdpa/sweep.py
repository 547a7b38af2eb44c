"""Other tilings than the chosen one, ranked."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from bench.sdpa.layers import Layer
from bench.sdpa.measure import Bench, first_line
from eagle_aot.triton_kernels.sdpa_splitk.tiling import (
    Tiling,
    choose_tiling,
    ring_splits,
    row_tile,
)

SHARED_MEMORY = 227 << 10
PROCESSORS = 132
MIN_STAGED, MAX_STAGED = 48 << 10, 160 << 10


@dataclass(frozen=True, slots=True)
class Ranked:
    """A tiling, its microseconds at each point, and how far it is from the best ones."""

    tiling: Tiling
    us: tuple[float, ...]
    slowdown: float


def candidates(layer: Layer) -> Iterator[Tiling]:
    """The chosen tiling, and what fits an H100 among its neighbours."""
    chosen = choose_tiling(layer.heads, layer.kv_heads, layer.head_dim, layer.window)
    yield chosen
    group = layer.heads // layer.kv_heads
    for rows, keys, stages in product(
        sorted({row_tile(group), 32, 64}), (16, 32, 64, 128), (2, 3, 4)
    ):
        for chunk, splits in splittings(layer, rows // group):
            tiling = Tiling(rows, keys, max(chunk, keys), splits, chosen.warps, stages)
            if fits(tiling, layer.head_dim) and tiling != chosen:
                yield tiling


def splittings(layer: Layer, rows: int) -> list[tuple[int, int]]:
    """Shortest chunk and number of chunks, for tiles of so many rows."""
    if layer.window:
        return [(chunk, ring_splits(layer.window, chunk, rows)) for chunk in (64, 128, 256)]
    return [(32, processors * PROCESSORS // layer.kv_heads - 1) for processors in (1, 2, 3)]


def fits(tiling: Tiling, head_dim: int) -> bool:
    """Roughly: queries and stages of keys and values fill a part of shared memory and fit in it,
    and a tile of keys is worth the instructions around it."""
    staged = 4 * head_dim * tiling.stages * tiling.key_tile
    shared = 2 * head_dim * tiling.row_tile + staged
    return staged >= MIN_STAGED and shared <= SHARED_MEMORY and staged <= MAX_STAGED


def sweep(
    bench: Bench, layer: Layer, points: Iterable[tuple[int, int]], notes: set[str]
) -> list[Ranked]:
    """All candidates at all (context, rows), the best first: the least mean slowdown."""
    from eagle_aot.triton_kernels.sdpa_splitk.kernel import launch

    points, times = tuple(points), {}
    for tiling in candidates(layer):
        try:
            times[tiling] = tuple(bench.candidate(launch, tiling, *point) for point in points)
        except Exception as error:  # Triton's have no common base
            notes.add(f"{layer.name}, {tiling}: {first_line(error)}")
    best = [min(column) for column in zip(*times.values(), strict=True)]
    ranked = (Ranked(tiling, us, mean_slowdown(us, best)) for tiling, us in times.items())
    return sorted(ranked, key=lambda r: r.slowdown)


def mean_slowdown(us: tuple[float, ...], best: list[float]) -> float:
    """Geometric."""
    ratios = [math.log(a / b) for a, b in zip(us, best, strict=True)]
    return math.exp(sum(ratios) / len(ratios))
