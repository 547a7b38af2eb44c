"""One GPU that several processes compile for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.context import SpawnContext
from typing import Any
from unittest.mock import patch

import torch
from torch.export import ExportedProgram

from eagle_aot.export.lowering.side_by_side.room import Room

CONTEXT = 9 << 26
"""Bytes of a GPU that a process takes once it has used it, roughly: CUDA's own."""

BESIDE = 3 << 28
"""Bytes that compiling takes beside a method's weights and the largest tensor, roughly: rows, what
timing writes between runs, and what the allocator keeps."""


def free_room(jobs: int, most: int | None) -> int:
    """Bytes of the GPU that methods in `jobs` processes can share out, beside what every process
    takes and this one holds: of what is free, and of `most` for all of them. Where that is none
    each method waits for all others."""
    if not torch.cuda.is_available():
        return 1
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    ours = CONTEXT + torch.cuda.memory_reserved()
    return max(min(free, free if most is None else most - ours) - jobs * CONTEXT, 1)


class SharedGpu:
    """What processes share: memory, and the quiet that timing needs."""

    def __init__(self, context: SpawnContext, room: int, methods: int) -> None:
        """To be handed to processes of the context as they are spawned; `room` is in bytes."""
        self.room = Room(context, room, methods)
        self._quiet = context.RLock()

    @contextmanager
    def memory(self, place: int, size: int) -> Iterator[None]:
        """Wait until the method at that place of the queue may take `size` bytes; keep them."""
        with self.room.taken(place, size):
            try:
                yield
            finally:
                if torch.cuda.is_initialized():
                    torch.cuda.empty_cache()

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
    """About what compiling a method takes: its weights, the largest tensor again, for tuning, and
    `BESIDE`. Caches take nothing but that."""
    held = {**program.state_dict, **program.constants}
    sizes = {name: held[name].nbytes for name in held if isinstance(held[name], torch.Tensor)}
    weights = sum(size for name, size in sizes.items() if "kv_cache" not in name)
    return weights + max(sizes.values(), default=0) + BESIDE
