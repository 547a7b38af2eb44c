"""How often a round hands something to the host."""

import torch
from torch.profiler import ProfilerActivity, profile

from eagle_aot.runtime_runner.bench.timing import Timed

TO_HOST = "Memcpy DtoH"
ROUNDS = 10


def host_copies(timed: Timed) -> float | None:
    """Copies from the GPU to the host per call whose result is read; None where none is seen.

    The profiler slows down what comes after it: time first, count then.
    """
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(ROUNDS):
            timed.prepare()
            timed.play().tolist()
        torch.cuda.synchronize()
    copies = sum(event.name.startswith(TO_HOST) for event in profiler.events())
    return copies / ROUNDS if copies else None
