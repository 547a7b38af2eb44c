"""A toy pair whose traced methods keep the graph contract, until a test breaks them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from eagle_aot.export.graph_checks import check_graphs
from eagle_aot.export.int4_dispatch import matvec_max_m_raised
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear
from eagle_aot.targets.int4.weight import random_int4

LENGTHS = MethodLengths(8, 9, 16)
RANGES = {"prefill": (9, 16), "target_verify": (1, 8), "draft_decode": (1, 16)}
WIDTH = 4
INT4_WIDTH = 32
Programs = dict[str, ExportedProgram]
Body = Callable[["Toy", Tensor, Tensor], Tensor]


class ToyCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(32, WIDTH))


class ToyModel(nn.Module):
    """A cache, a buffer that is none, a dense weight and INT4 ones; used or not."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.kv_cache = ToyCache()
        self.register_buffer("scratch", torch.zeros(32, WIDTH, dtype=dtype))
        self.dense = nn.Linear(WIDTH, 6, dtype=dtype)
        weight = random_int4(6, INT4_WIDTH, 32, torch.bfloat16)
        self.int4 = PackedInt4Linear(weight, multiprocessors=1)
        self.unpacked = Int4Linear(weight, torch.bfloat16)

    def int4_rows(self, x: Tensor) -> Tensor:
        """`x` [rows, WIDTH] -> bfloat16 [rows, INT4_WIDTH], what INT4 weights take."""
        return torch.cat([x] * (INT4_WIDTH // WIDTH), dim=-1).to(torch.bfloat16)


class Toy(nn.Module):
    """Two models with a cache each; `body` decides what is read and written."""

    def __init__(self, body: Body, dtype: torch.dtype, caches: int) -> None:
        super().__init__()
        self.target, self.draft = ToyModel(dtype), ToyModel(dtype)
        if caches == 2:
            self.target.other = ToyModel(dtype)
        self.body = body

    def forward(self, x: Tensor, input_pos: Tensor) -> Tensor:
        return self.body(self, x, input_pos)


def write_target(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return x + toy.target.kv_cache.k.index_copy_(0, input_pos, x).sum()


def write_draft(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return x + toy.draft.kv_cache.k.index_copy_(0, input_pos, x).sum()


def trace(
    name: str,
    body: Body,
    *,
    bounds: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    caches: int = 1,
) -> ExportedProgram:
    """`body` over x [rows, WIDTH] and input_pos [rows], with the rows of the method `name`."""
    low, high = bounds or RANGES[name]
    inputs = torch.ones(high, WIDTH), torch.arange(high)
    rows = Dim("rows", min=low, max=high)
    shapes = ({0: rows}, {0: rows})
    toy = Toy(body, dtype, caches)
    with matvec_max_m_raised(LENGTHS.max_verify_window):
        return torch.export.export(toy, inputs, dynamic_shapes=shapes, strict=False)


def good_programs() -> Programs:
    """The three methods, each writing its cache and nothing else."""
    bodies = {"prefill": write_target, "target_verify": write_target, "draft_decode": write_draft}
    return {name: trace(name, body) for name, body in bodies.items()}


def writer(name: str) -> Body:
    """What a method must do at least."""
    return write_draft if name == "draft_decode" else write_target


def check_with(good: Programs, **broken: ExportedProgram) -> None:
    """The contract of `good` with some methods exchanged."""
    check_graphs(good | broken, LENGTHS)
