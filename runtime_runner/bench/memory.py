"""Peak memory by what it is for."""

from collections.abc import Mapping

import torch

from eagle_aot.host_memory import host_peak_bytes
from eagle_aot.runtime_runner.executors import Executor
from eagle_aot.runtime_runner.executors.aoti import AotiExecutor

WORKSPACE = "workspace"
PROCESS = "process"


def forget_peak(device: torch.device) -> None:
    """Start a new peak, so that loading does not count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_memory(executor: Executor) -> dict[str, int]:
    """Bytes at the peak, by part; the process's largest resident set where that is all that is
    known."""
    if not isinstance(executor, AotiExecutor):
        return {PROCESS: host_peak_bytes()}
    return with_workspace(executor.weights.bytes_by_part(), torch.cuda.max_memory_allocated())


def with_workspace(held: Mapping[str, int], peak: int) -> dict[str, int]:
    """The parts that are always there, and what was needed beside them."""
    return dict(held) | {WORKSPACE: peak - sum(held.values())}
