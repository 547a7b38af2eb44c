"""Time the products of experts on a GPU: `python -m eagle_aot.lab.bench.experts`.

Weights are random INT4 in groups of 32, for several layers in turn, so that no cache holds them.
Routes are those of dummies: scores are normal, and an expert's have a deviation of its own. The
floor is the time to read the experts that any row takes once. Peers: PyTorch's grouped product of
bfloat16 weights, first products alone, and the dense INT4 kernel with a weight of as many bytes.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle_aot.lab.bench.memory import read_bandwidth
from eagle_aot.lab.bench.timing import Clock, Timed, clock_for, time_on_device
from eagle_aot.targets.decoder.experts import (
    ExpertChoice,
    Experts,
    ExpertsConfig,
    Int4ExpertLinears,
    random_experts,
)
from eagle_aot.targets.decoder.packed_experts import PackedExperts
from eagle_aot.targets.decoder.weights import ROUTER_SPREAD
from eagle_aot.targets.int4.weight import Int4Format
from eagle_aot.triton_kernels.int4_experts import tiling
from eagle_aot.triton_kernels.int4_gemm import set_matvec_max_m
from eagle_aot.triton_kernels.int4_gemm.op import int4_small_m

ROWS = 1, 2, 3, 4, 5, 8, 16, 32, 64
PROMPT = 1536
LAYERS, CALLS, GROUP = 4, 5, 32


@dataclass(frozen=True, slots=True)
class Geometry:
    """Experts of a layer, and the width of its stream."""

    experts: ExpertsConfig
    hidden: int
    activation: str


GEOMETRIES = {
    "gemma4-26b-a4b": Geometry(
        ExpertsConfig(num_experts=128, top_k=8, intermediate_size=704), 2816, "gelu_tanh"
    ),
    "qwen3-30b-a3b": Geometry(
        ExpertsConfig(num_experts=128, top_k=8, intermediate_size=768), 2048, "silu"
    ),
}


class Layer:
    """Experts with random weights, and a router's deviations [E]."""

    def __init__(self, geometry: Geometry) -> None:
        config, hidden = geometry.experts, geometry.hidden
        experts = Experts(config, hidden, geometry.activation, torch.bfloat16)
        count, inner = config.num_experts, config.intermediate_size
        sizes = (count, 2 * inner, hidden), (count, hidden, inner)
        first, second = (random_experts(s, Int4Format(GROUP), torch.bfloat16) for s in sizes)
        experts.gate_up_proj, experts.down_proj = first, second
        assert isinstance(first, Int4ExpertLinears) and isinstance(second, Int4ExpertLinears)
        self.bytes = sum(m.qdata.nbytes + m.scale.nbytes for m in (first, second)) / count
        self.packed = PackedExperts(experts)
        self.packed.returns_parts = True
        self.deviations = (ROUTER_SPREAD * torch.randn(count)).exp()
        self.choice = ExpertChoice(config)

    def routes(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return weights float32 and ids int64 [rows, k]."""
        weights, ids = self.choice(torch.randn(rows, len(self.deviations)) * self.deviations)
        return weights, ids


def recorded(clock: Clock, run: Callable[[], object]) -> float:
    """Return the milliseconds of a call, as a CUDA graph where there is a GPU."""
    run()
    result = torch.empty(0)
    if not clock.is_host:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay

    def timed() -> Tensor:
        run()
        return result

    return min(time_on_device(clock, Timed(timed, lambda: None), CALLS) for _ in range(CALLS))


def mixture(
    clock: Clock, layers: list[Layer], hidden: int, rows: int
) -> tuple[float, float, float]:
    """Return microseconds of a layer's experts, their bytes, and how many are taken."""
    x = torch.randn(rows, hidden).bfloat16()
    routes = [layer.routes(rows) for layer in layers]
    calls = list(zip(layers, routes, strict=True))
    ms = recorded(clock, lambda: [layer.packed(x, *route) for layer, route in calls])
    taken = sum(len(ids.unique()) for _, ids in routes) / len(layers)
    return 1e3 * ms / len(layers), taken * layers[0].bytes, taken


def dense_int4(clock: Clock, layers: list[Layer], hidden: int, experts: int, rows: int) -> float:
    """Return microseconds of dense INT4 products with the weights of so many experts."""
    x = torch.randn(1, rows, hidden).bfloat16()

    def run() -> None:
        for layer in layers:
            for packed, width in ((layer.packed.gate_up_proj, hidden), (layer.packed.down_proj, 0)):
                codes, scales = (t[:experts].flatten(0, 1) for t in (packed.codes, packed.scales))
                columns = width or codes.shape[1] * 128
                inputs = x[..., :columns] if columns <= hidden else x
                int4_small_m(inputs, codes, scales, None, 128 * codes.shape[0], 1, "")

    return 1e3 * recorded(clock, run) / len(layers)


def grouped_bfloat16(clock: Clock, geometry: Geometry, layer: Layer, rows: int) -> float | None:
    """Return microseconds of the first products by PyTorch's grouped product in bfloat16, None
    where it has none."""
    config = geometry.experts
    count, width = config.num_experts, 2 * config.intermediate_size
    weights = [torch.randn(count, width, geometry.hidden).bfloat16() for _ in range(2)]
    ids = layer.routes(rows)[1].flatten()
    ends = ids.bincount(minlength=count).cumsum(0).int()
    x = torch.randn(len(ids), geometry.hidden).bfloat16()
    try:
        ms = recorded(
            clock, lambda: [torch._grouped_mm(x, w.transpose(1, 2), offs=ends) for w in weights]
        )
    except (AttributeError, RuntimeError) as error:
        print(f"grouped bfloat16: {str(error).splitlines()[0]}")
        return None
    return 1e3 * ms / len(weights)


def variants() -> Iterator[tuple[str, tuple[tiling.FewRowsTile, ...]]]:
    """Yield the tiles of the product, and others that may be faster."""
    usual = tiling.FEW_ROWS_TILES[1]
    yield "as it is", usual
    for (outputs, warps), stages in itertools.product(((128, 4), (128, 8), (64, 4)), (3, 4, 6)):
        other = replace(usual[0], warps=warps, stages=stages, pairs=warps == 8, outputs=outputs)
        tiles = tuple(replace(other, rows=tile.rows, width=tile.width) for tile in usual)
        yield f"{outputs} outputs, {warps} warps, {stages} stages", tiles


def report(name: str, geometry: Geometry, clock: Clock, device: torch.device, sweep: bool) -> None:
    """Print the figures of one geometry."""
    torch.manual_seed(0)
    layers, bandwidth = [Layer(geometry) for _ in range(LAYERS)], read_bandwidth(clock, device)
    hidden = geometry.hidden
    print(f"\n{name}: {layers[0].bytes / 1e6:.2f} MB an expert, {bandwidth / 1e12:.2f} TB/s")
    print("rows experts     us  floor us  x floor  x plain  dense INT4 us  grouped bf16 us (first)")
    plain = None
    for rows in ROWS:
        us, bytes_, taken = mixture(clock, layers, hidden, rows)
        floor, plain = 1e6 * bytes_ / bandwidth, plain or us
        dense = dense_int4(clock, layers, hidden, max(round(taken), 1), rows)
        peer = grouped_bfloat16(clock, geometry, layers[0], rows) if rows in (1, 8, 64) else None
        print(f"{rows:4} {taken:7.1f} {us:7.1f} {floor:8.1f} {us / floor:8.2f} {us / plain:8.2f} "
              f"{dense:13.1f}  {peer or float('nan'):12.1f}")  # fmt: skip
    us, bytes_, _ = mixture(clock, layers, hidden, PROMPT)
    work = 6 * PROMPT * geometry.experts.top_k * hidden * geometry.experts.intermediate_size
    print(f"{PROMPT} rows: {us:.1f} us, {work / us / 1e6:.0f} TFLOP/s")
    usual = tiling.FEW_ROWS_TILES[1]
    for tile_name, tiles in variants() if sweep else ():
        tiling.FEW_ROWS_TILES[1] = tiles
        times = [mixture(clock, layers, hidden, rows)[0] for rows in (1, 4, 8, 16, 64)]
        print(f"{tile_name:30}", *(f"{time:7.1f}" for time in times), "us at 1, 4, 8, 16, 64 rows")
    tiling.FEW_ROWS_TILES[1] = usual


def main() -> None:
    """Print the figures of both geometries."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--sweep", choices=GEOMETRIES, help="also time other tiles for one of them")
    swept = parser.parse_args().sweep
    device = torch.device("cuda")
    set_matvec_max_m(tiling.MAX_FEW_ROWS)
    with device, torch.no_grad():
        for name, geometry in GEOMETRIES.items():
            report(name, geometry, clock_for(device), device, name == swept)


if __name__ == "__main__":
    main()
