"""How a round may touch its caches: the operator for few rows reads them, moves stay within."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from eagle_aot.common.errors import ExportError
from eagle_aot.export.graph_checks.routes import check_attention_route
from eagle_aot.targets.step import TAIL, chain_tail
from eagle_aot.triton_kernels.sdpa_splitk import sdpa_splitk

SLOTS, ROWS = 64, 8
CACHES = {f"layer.kv_cache.{name}" for name in "kv"}


class Cache(nn.Module):
    k: Tensor
    v: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in "kv":
            self.register_buffer(name, torch.zeros(1, SLOTS, 16, dtype=torch.bfloat16))


Body = Callable[[Cache, Tensor], Tensor | None]


class Attending(nn.Module):
    """A layer: `body` of its cache and of where moved entries lie, then a write and a read."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.layer, self.body = nn.ModuleDict({"kv_cache": Cache()}), body

    def forward(self, q: Tensor, positions: Tensor, moves: Tensor) -> Tensor:
        cache = self.layer["kv_cache"]
        assert isinstance(cache, Cache)
        more = self.body(cache, moves)
        k, v = (
            buffer.index_copy_(1, positions[0], q[:, :, 0]).unflatten(1, (1, SLOTS))
            for buffer in (cache.k, cache.v)
        )
        sequences = torch.zeros(1, dtype=torch.int64)
        attended = sdpa_splitk(q, k, v, positions, sequences, chain_tail(positions), 1.0, 0, 0)
        return attended if more is None else attended + more


def traced(body: Body) -> ExportedProgram:
    q = torch.zeros(1, ROWS, 1, 16, dtype=torch.bfloat16)
    inputs = q, torch.arange(ROWS).unsqueeze(0), torch.arange(TAIL)
    return torch.export.export(Attending(body), inputs, strict=False)


def nothing(cache: Cache, moves: Tensor) -> None:
    pass


def within(cache: Cache, moves: Tensor) -> None:
    for buffer in (cache.k, cache.v):
        buffer.index_copy_(1, moves + 1, buffer.index_select(1, moves))


def within_by_index(cache: Cache, moves: Tensor) -> None:
    for buffer in (cache.k, cache.v):
        torch.ops.aten.index_put_(buffer, [None, moves + 1], buffer.index_select(1, moves))


def to_the_other(cache: Cache, moves: Tensor) -> None:
    cache.v.index_copy_(1, moves + 1, cache.k.index_select(1, moves))


def within_and_out(cache: Cache, moves: Tensor) -> Tensor:
    moved = cache.k.index_select(1, moves)
    cache.k.index_copy_(1, moves + 1, moved)
    return moved.sum()


def as_indices(cache: Cache, moves: Tensor) -> None:
    cache.k.index_copy_(
        1, cache.k.index_select(1, moves)[0, :, 0].long(), torch.ones(1, TAIL, 16).bfloat16()
    )


def view(cache: Cache, moves: Tensor) -> Tensor:
    return cache.v.view(SLOTS, 16).sum()


def whole(cache: Cache, moves: Tensor) -> None:
    cache.k.index_copy_(1, torch.arange(SLOTS), cache.v)


@pytest.mark.parametrize("body", [nothing, within, within_by_index])
def test_a_cache_that_the_operator_alone_reads_passes(body: Body) -> None:
    check_attention_route("target_verify", traced(body), CACHES, few_rows=True)


@pytest.mark.parametrize(("body", "cache", "reader"), [
    (to_the_other, "k", "index_select"),
    (within_and_out, "k", "index_select"),
    (as_indices, "k", "index_select"),
    (view, "v", "sum"),
    (whole, "v", "index_copy"),
])  # fmt: skip
def test_a_cache_with_another_reader_is_refused(body: Body, cache: str, reader: str) -> None:
    message = (
        rf"^target_verify: cache layer\.kv_cache\.{cache} is read by aten::{reader}, not by sdpa"
    )
    with pytest.raises(ExportError, match=message):
        check_attention_route("target_verify", traced(body), CACHES, few_rows=True)
