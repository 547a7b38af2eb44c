"""Recorded chains of kernels that begin early, on a GPU: they read what was written, every time."""

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.executors.cuda_graph import record
from eagle_aot.runtime_runner.executors.early_launch import EarlyLaunch
from eagle_aot.triton_kernels.dense_gemm.op import dense_small_m
from eagle_aot.triton_kernels.int4_gemm.op import int4_small_m
from eagle_aot.triton_kernels.residual_norm import residual_norm
from support.kernels.int4_cases import Case, tensors

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs a CUDA GPU of compute capability 9.0",
)

REPLAYS = 1000


def test_who_waits_reads_what_was_written() -> None:
    from support.kernels.early_chain import Chain, waiting_kernel

    chain, early = Chain(waiting_kernel), EarlyLaunch(["waiting_kernel"])
    replay = record(chain.step, torch.cuda.graph_pool_handle(), early)
    assert early.edges == chain.links + 1
    for _ in range(REPLAYS):
        replay()
    assert torch.equal(chain.numbers, torch.full_like(chain.numbers, 1 + REPLAYS))


def test_who_does_not_wait_does_begin_early() -> None:
    """It reads what was there before, so waiting is what the test above tests."""
    from support.kernels.early_chain import Chain, hasty_kernel

    chain = Chain(hasty_kernel)
    replay = record(chain.step, torch.cuda.graph_pool_handle(), EarlyLaunch(["hasty_kernel"]))
    for _ in range(20):
        replay()
    assert not torch.equal(chain.numbers, torch.full_like(chain.numbers, 21))


class Layers:
    """Products and norms of a decoder, whose input is the output of the time before."""

    HIDDEN, WIDE, NUMBER = 1024, 8192, 4

    def __init__(self, rows: int) -> None:
        generator = torch.Generator("cuda").manual_seed(rows)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            x = torch.randn(shape, generator=generator, device="cuda")
            return (scale * x).to(torch.bfloat16)

        self.x = normal(1, rows, self.HIDDEN)
        up, down = Case(self.WIDE, self.HIDDEN, 32), Case(self.HIDDEN, self.WIDE, 32)
        self.up, self.down = (tensors(case.packed("cuda")) for case in (up, down))
        self.dense = [normal(self.HIDDEN, self.HIDDEN, scale=0.03) for _ in range(self.NUMBER)]
        self.norms = [1 + normal(self.HIDDEN, scale=0.1) for _ in range(self.NUMBER)]

    def step(self) -> Tensor:
        stream, normed = self.x, self.x
        for dense, norm in zip(self.dense, self.norms, strict=True):
            rest = norm, None, norm, 1e-6, 1e-6
            stream, normed = residual_norm(dense_small_m(normed, dense, 2), stream, *rest)
            wide = int4_small_m(normed, *self.up, 1, "")[0]
            parts = int4_small_m(wide, *self.down, 4, "")
            stream, normed = residual_norm(parts, stream, *rest)
        self.x.copy_(normed)
        return self.x


@pytest.mark.parametrize("rows", [1, 8, 33])
def test_the_kernels_give_the_bits_that_they_give_one_by_one(rows: int) -> None:
    """A step's buffers are used again within it."""
    from eagle_aot.triton_kernels.early_launch import KERNELS

    early, pool = EarlyLaunch(KERNELS), torch.cuda.graph_pool_handle()
    chains = Layers(rows), Layers(rows)
    replays = record(chains[0].step, pool, early), record(chains[1].step, pool)
    assert early.edges == 5 * Layers.NUMBER - 1
    for turn in range(REPLAYS):
        for replay in replays:
            replay()
        if turn % 50 == 0 or turn == REPLAYS - 1:
            assert torch.isfinite(chains[0].x).all()
            assert torch.equal(chains[0].x, chains[1].x), turn
