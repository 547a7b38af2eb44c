"""Times of GPU work by replays of a CUDA graph, whose launches cost nothing."""

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

MEASURED_S = 0.05
REPLAYS_AT_ONCE = 4
L2_BYTES = 50 << 20  # an H100's


def copies_past_l2(nbytes: int) -> int:
    """How many buffers of `nbytes` to take in turn so that none is still in the L2 cache."""
    return max(2, -(-4 * L2_BYTES // nbytes))


def median_us(calls: Sequence[Callable[[], object]]) -> float:
    """The median time of one of `calls`, recorded one after another into one graph.

    The first third of the replays warms the GPU up and is dropped.
    """
    graph = recorded(calls)
    samples: list[float] = []
    end = time.perf_counter() + 2 * MEASURED_S
    while time.perf_counter() < end:
        samples += replayed(graph)
    return 1e3 * statistics.median(samples[len(samples) // 3 :]) / len(calls)


def recorded(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """A graph of all calls, after each ran once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def replayed(graph: torch.cuda.CUDAGraph) -> list[float]:
    """Milliseconds of a few replays, by events."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS_AT_ONCE + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(events)]
