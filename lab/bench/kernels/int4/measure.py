"""Times and errors of the linears over one shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eagle_aot.lab.bench.kernels.graph_timing import copies_past_l2, median_us
from eagle_aot.lab.bench.kernels.int4.linears import Linear, dense
from eagle_aot.lab.bench.kernels.int4.shapes import Shape
from eagle_aot.targets.int4 import Int4Weight

CHECKED_ROWS = 4096
"""Of a product are compared with float32: enough to see every fault, and small next to a table."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The median time of a linear for each number of rows, and its error: of `||out - exact||`
    relative to `||exact||`, the largest."""

    us: dict[int, float]
    error: float


def random_weight(shape: Shape, group: int) -> Int4Weight:
    """Symmetric, on the GPU."""
    groups = shape.k // group
    qdata = torch.randint(0, 256, (shape.n, shape.k // 2), dtype=torch.uint8, device="cuda")
    scale = (0.5 + torch.rand(groups, shape.n, device="cuda")) / (4.3 * shape.k**0.5)
    zeros = torch.full((groups, shape.n), 8.0, dtype=torch.bfloat16, device="cuda")
    return Int4Weight(qdata=qdata, scale=scale.bfloat16(), zero_point=zeros)


def exact_product(weight: Int4Weight, x: Tensor) -> Tensor:
    """The first columns of the product in float32, with the weight not rounded."""
    n = min(CHECKED_ROWS, weight.shape[0])
    codes = torch.stack((weight.qdata[:n] & 0xF, weight.qdata[:n] >> 4), dim=-1).flatten(1)
    spread = weight.group_size
    scale, zero = (
        t[:, :n].float().t().repeat_interleave(spread, dim=1)
        for t in (weight.scale, weight.zero_point)
    )
    return x.float() @ ((codes.float() - zero) * scale).t()


def measure(
    make: Callable[[Int4Weight], Linear], weight: Int4Weight, rows: Sequence[int], nbytes: int
) -> Timed:
    """Time a linear over copies of its weight that no cache holds together."""
    linears = [make(weight) for _ in range(copies_past_l2(nbytes * (4 if make is dense else 1)))]
    us, errors = {}, []
    for m in rows:
        x = torch.randn(m, weight.shape[1], device="cuda").bfloat16()
        exact = exact_product(weight, x)
        output = linears[0](x)
        columns = output.reshape(-1, m, output.shape[-1]).float().sum(0)[:, : exact.shape[1]]
        errors.append(float((columns - exact).norm() / exact.norm()))
        us[m] = median_us([partial(linear, x) for linear in linears])
    return Timed(us, max(errors))
