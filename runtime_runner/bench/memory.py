"""Peak memory by what it is for."""

from collections.abc import Mapping

import torch

from eagle_aot.host_memory import host_peak_bytes
from eagle_aot.runtime_runner.executors import Executor
from eagle_aot.runtime_runner.executors.aoti import AotiExecutor

WORKSPACE = "workspace"
REST = "CUDA itself and all else on the device"
PROCESS = "process"


def forget_peak(device: torch.device) -> None:
    """Start a new peak, so that loading does not count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_memory(executor: Executor) -> dict[str, int]:
    """Bytes at the peak, by part, adding up to what is in use on the device; the process's largest
    resident set where that is all that is known."""
    if not isinstance(executor, AotiExecutor):
        return {PROCESS: host_peak_bytes()}
    free, total = torch.cuda.mem_get_info()
    peak = torch.cuda.max_memory_allocated()
    return all_parts(executor.weights.bytes_by_part(), peak, total - free)


def all_parts(held: Mapping[str, int], peak: int, in_use: int) -> dict[str, int]:
    """The parts that are always there, what was needed beside them up to the peak, and what the
    device has in use besides: CUDA's context, memory kept for reuse, other processes."""
    return dict(held) | {WORKSPACE: peak - sum(held.values()), REST: in_use - peak}
