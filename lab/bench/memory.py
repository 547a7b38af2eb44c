"""The device's memory: how fast it is read, and what takes it at the peak."""

from collections.abc import Mapping

import torch

from eagle_aot.common.memory import host_peak_bytes
from eagle_aot.lab.bench.timing import Clock, Timed, time_on_device
from eagle_aot.runtime_runner.program.aoti import AotiExecutor
from eagle_aot.runtime_runner.program.device_weights import PAGES
from eagle_aot.runtime_runner.program.executor import Call, Executor

BUFFER_BYTES = {"cuda": 1 << 30, "cpu": 256 << 20}  # far larger than any cache
COLUMNS = 1 << 14
TRIES = 8
CALLS = 4  # of each try

WORKSPACE = "workspace"
KEPT = "kept for reuse by PyTorch"
CONTEXT = "CUDA's context and other processes"
REST = "kernels, graphs and all else"
PROCESS = "process"


def read_bandwidth(clock: Clock, device: torch.device) -> float:
    """Return bytes per second: the fastest of plain reductions over random numbers."""
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
    """Return the GPU's bytes in use by all processes, 0 without a GPU. Initializes CUDA."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def peak_memory(executor: Executor, peak: int, in_use_before: int) -> dict[str, int]:
    """Return the bytes at the peak by part, which add up to the device's memory in use.

    `peak` is PyTorch's on the device, `in_use_before` is `bytes_in_use` before the artifact was
    opened. On a CPU only the process's largest resident set is known.
    """
    if not isinstance(executor, AotiExecutor):
        return {PROCESS: host_peak_bytes()}
    parts, reserved = executor.weights.bytes_by_part(), torch.cuda.memory_reserved()
    paged = parts.get(PAGES, 0)  # not PyTorch's
    return all_parts(parts, peak + paged, reserved + paged, in_use_before, bytes_in_use())


def all_parts(
    parts: Mapping[str, int], peak: int, reserved: int, in_use_before: int, in_use: int
) -> dict[str, int]:
    """Add to the permanent `parts` the workspace up to the peak, what PyTorch reserves on top, what
    was in use before the artifact was opened, and the rest of `in_use`.

    What PyTorch or another process has freed since counts as if it were still in use.
    """
    freed = max(peak - reserved, 0)
    reserved, in_use = reserved + freed, in_use + freed
    in_use = max(in_use, reserved + in_use_before)
    return dict(parts) | {
        WORKSPACE: peak - sum(parts.values()),
        KEPT: reserved - peak,
        CONTEXT: in_use_before,
        REST: in_use - reserved - in_use_before,
    }
