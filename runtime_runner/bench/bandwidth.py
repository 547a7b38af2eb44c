"""How fast this device reads its memory."""

import torch

from eagle_aot.runtime_runner.bench.timing import Clock, Timed, time_on_device
from eagle_aot.runtime_runner.executors import Call

BUFFER_BYTES = {"cuda": 1 << 30, "cpu": 256 << 20}  # far larger than any cache
COLUMNS = 1 << 14
TRIES = 8
CALLS = 4


def read_bandwidth(clock: Clock, device: torch.device) -> float:
    """Bytes per second: the best of plain reductions over random numbers."""
    buffer = torch.rand(BUFFER_BYTES[device.type] // 4 // COLUMNS, COLUMNS, device=device)
    reductions: tuple[Call, ...] = (
        lambda: buffer.sum(),
        lambda: buffer.amax(),
        lambda: buffer.sum(dim=1),
    )
    fastest = min(
        time_on_device(clock, Timed(reduction, lambda: None), CALLS)
        for reduction in reductions
        for _ in range(TRIES)
    )
    return 1e3 * buffer.nbytes / fastest
