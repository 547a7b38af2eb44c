"""One GPU that several processes compile for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.context import SpawnContext
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram

BESIDE = 2 << 30
"""Bytes of a GPU that a process takes beside a method's weights, roughly: its context, and what
compiling and tuning need."""


def free_room(jobs: int, most: int | None) -> int:
    """Bytes of the GPU that `jobs` processes can share out, `most` of what is free; where that is
    none each waits for all others."""
    if not torch.cuda.is_available():
        return 1
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return max(min(free, most or free) - jobs * BESIDE, 1)


class SharedGpu:
    """What processes take in turns: memory, and the quiet that timing needs."""

    def __init__(self, context: SpawnContext, room: int) -> None:
        """To be handed to processes of the context as they are spawned; `room` is in bytes."""
        self._changed = context.Condition()
        self._free = context.Value("q", room, lock=False)  # which the condition guards
        self._room = room
        self._quiet = context.RLock()

    @contextmanager
    def memory(self, size: int) -> Iterator[None]:
        """Wait until `size` bytes are free, and keep them; more than all there is waits for all."""
        size = min(size, self._room)
        with self._changed:
            self._changed.wait_for(lambda: self._free.value >= size)
            self._free.value -= size
        try:
            yield
        finally:
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            with self._changed:
                self._free.value += size
                self._changed.notify_all()

    @contextmanager
    def quiet_timing(self) -> Iterator[None]:
        """Let Inductor time kernels while no other of the processes does.

        torch 2.13 takes such a lock itself, where it is told of one; 2.11 knows none.
        """
        from torch._inductor.runtime import benchmarking

        with ExitStack() as stack:
            for kind in (benchmarking.TritonBenchmarker, benchmarking.InductorBenchmarker):
                alone = self._alone(kind.benchmark_gpu)
                stack.enter_context(patch.object(kind, "benchmark_gpu", alone))
            yield

    def _alone(self, measure: Callable[..., Any]) -> Callable[..., Any]:
        def measure_alone(*args: Any, **kwargs: Any) -> Any:
            with self._quiet:
                return measure(*args, **kwargs)

        return measure_alone


def gpu_bytes(program: ExportedProgram) -> int:
    """About what compiling a method takes: its weights, and a copy of the largest for tuning.

    Caches take nothing.
    """
    held = {**program.state_dict, **program.constants}
    sizes = [
        tensor.nbytes
        for name, tensor in held.items()
        if isinstance(tensor, torch.Tensor) and "kv_cache" not in name
    ]
    return sum(sizes) + max(sizes, default=0)
