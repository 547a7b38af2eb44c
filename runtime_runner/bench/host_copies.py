"""How often a round hands something to the host."""

import os

import torch
from torch.profiler import ProfilerActivity, profile

from eagle_aot.runtime_runner.bench.timing import Timed

TO_HOST = "Memcpy DtoH"
ROUNDS = 10
QUIET = "KINETO_LOG_LEVEL", "99"  # else the profiler reports each of its stages on stderr


def host_copies(timed: Timed) -> float | None:
    """Copies from the GPU to the host per call whose result is read; None where none is seen.

    The profiler slows down what comes after it: time first, count then.
    """
    os.environ.setdefault(*QUIET)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(ROUNDS):
            timed.prepare()
            timed.play().tolist()
        torch.cuda.synchronize()
    copies = sum(event.name.startswith(TO_HOST) for event in profiler.events())
    return copies / ROUNDS if copies else None
