"""Turns on one GPU."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.runtime.benchmarking import InductorBenchmarker, TritonBenchmarker

from eagle_aot.export.lowering.side_by_side.shared_gpu import (
    BESIDE,
    CONTEXT,
    SharedGpu,
    free_room,
    gpu_bytes,
)

MULTIPROCESSING = get_context("spawn")


def test_room_is_what_contexts_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.cuda.is_available() or free_room(4, None) == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 1 << 30)
    assert free_room(4, None) == free_room(4, 75 << 30) == (70 << 30) - 4 * CONTEXT
    assert free_room(4, 32 << 30) == (31 << 30) - 5 * CONTEXT, "this process's, and what it holds"
    assert free_room(200, None) == free_room(4, 1 << 30) == 1, "each waits for all others"


def test_memory_is_given_back() -> None:
    gpu = SharedGpu(MULTIPROCESSING, room=10, methods=3)
    for place in range(3):
        with pytest.raises(KeyError), gpu.memory(place, 8):
            raise KeyError("a failure")


def test_kernels_are_timed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = threading.Lock()

    def measure(benchmarker: object, seconds: float) -> float:
        assert busy.acquire(blocking=False), "something else is being timed"
        time.sleep(seconds)
        busy.release()
        return seconds

    for kind in (TritonBenchmarker, InductorBenchmarker):
        monkeypatch.setattr(kind, "benchmark_gpu", measure)
    with (
        SharedGpu(MULTIPROCESSING, room=10, methods=1).quiet_timing(),
        ThreadPoolExecutor(4) as pool,
    ):
        kinds = [TritonBenchmarker(), InductorBenchmarker()] * 4
        times = list(pool.map(lambda kind: kind.benchmark_gpu(0.01), kinds))
    assert times == [0.01] * 8
    assert TritonBenchmarker.benchmark_gpu is InductorBenchmarker.benchmark_gpu is measure


class Method(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(16))
        self.register_buffer("kv_cache", torch.zeros(1024))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.large.sum() + self.small.sum() + self.get_buffer("kv_cache").sum()


def test_a_method_needs_its_weights_and_the_largest_tensor_again() -> None:
    program = torch.export.export(Method(), (torch.ones(1),))
    assert gpu_bytes(program) == 4 * (64 + 16 + 1024) + BESIDE
