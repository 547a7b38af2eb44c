"""The device's memory: how fast it is read, and what it is full of at the peak."""

from collections.abc import Mapping

import torch

from eagle_aot.common.memory import host_peak_bytes
from eagle_aot.lab.bench.timing import Clock, Timed, time_on_device
from eagle_aot.runtime_runner.program.aoti import AotiExecutor
from eagle_aot.runtime_runner.program.executor import Call, Executor

BUFFER_BYTES = {"cuda": 1 << 30, "cpu": 256 << 20}  # far larger than any cache
COLUMNS = 1 << 14
TRIES = 8
CALLS = 4

WORKSPACE = "workspace"
KEPT = "kept for reuse by PyTorch"
CONTEXT = "CUDA's context and other processes"
REST = "kernels, graphs and all else"
PROCESS = "process"


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


def bytes_in_use() -> int:
    """On the GPU, by whomever; starts CUDA there. 0 on a machine without one."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def peak_memory(executor: Executor, peak: int, in_use_before: int) -> dict[str, int]:
    """Bytes at the peak, by part, adding up to what is in use on the device; the process's largest
    resident set where that is all that is known. `peak` is PyTorch's on the device,
    `in_use_before` what `bytes_in_use` was before the artifact was opened."""
    if not isinstance(executor, AotiExecutor):
        return {PROCESS: host_peak_bytes()}
    held, reserved = executor.weights.bytes_by_part(), torch.cuda.memory_reserved()
    return all_parts(held, peak, reserved, in_use_before, bytes_in_use())


def all_parts(
    held: Mapping[str, int], peak: int, reserved: int, before: int, in_use: int
) -> dict[str, int]:
    """The parts that are always there, what was needed beside them up to the peak, what PyTorch
    keeps behind that, what was in use before the artifact was opened, and what is left to name."""
    return dict(held) | {
        WORKSPACE: peak - sum(held.values()),
        KEPT: reserved - peak,
        CONTEXT: before,
        REST: in_use - reserved - before,
    }
