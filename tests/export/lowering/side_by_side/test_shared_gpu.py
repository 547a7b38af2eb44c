"""Turns on one GPU."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.runtime.benchmarking import InductorBenchmarker, TritonBenchmarker

from eagle_aot.export.lowering.side_by_side.shared_gpu import SharedGpu, free_room, gpu_bytes

CONTEXT = get_context("spawn")


def most_at_once(gpu: SharedGpu, sizes: list[int]) -> int:
    """What threads that take so much for a while hold together at most."""
    held: list[int] = []
    seen: list[int] = []

    def take(size: int) -> None:
        with gpu.memory(size):
            held.append(size)
            seen.append(sum(held))
            time.sleep(0.02)
            held.remove(size)

    threads = [threading.Thread(target=take, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(seen) == len(sizes), "all had their turn"
    return max(seen)


def test_memory_is_shared_out() -> None:
    gpu = SharedGpu(CONTEXT, room=10)
    assert most_at_once(gpu, [6, 6, 3, 4, 6, 3]) <= 10
    assert most_at_once(gpu, [3, 3, 3]) == 9
    assert most_at_once(gpu, [25, 3, 3]) == 25, "what never fits runs alone"


def test_what_is_free_is_shared_out_beside_what_every_process_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert torch.cuda.is_available() or free_room(4, None) == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 << 30, 80 << 30))
    assert free_room(4, None) == free_room(4, 75 << 30) == 62 << 30
    assert free_room(4, 32 << 30) == 24 << 30
    gpu = SharedGpu(CONTEXT, free_room(100, None))
    assert most_at_once(gpu, [6, 3, 4]) == 6, "each waits for all others"


def test_kernels_are_timed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = threading.Lock()

    def measure(benchmarker: object, seconds: float) -> float:
        assert busy.acquire(blocking=False), "something else is being timed"
        time.sleep(seconds)
        busy.release()
        return seconds

    for kind in (TritonBenchmarker, InductorBenchmarker):
        monkeypatch.setattr(kind, "benchmark_gpu", measure)
    with SharedGpu(CONTEXT, room=10).quiet_timing(), ThreadPoolExecutor(4) as pool:
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


def test_a_method_needs_its_weights_and_the_largest_again() -> None:
    program = torch.export.export(Method(), (torch.ones(1),))
    assert gpu_bytes(program) == 4 * (64 + 16 + 64)
