"""The interface of executors, which run an artifact's methods, and how one is opened."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from eagle_aot.artifact import Manifest, methods_of
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.memory import LOWER, free_bytes, in_binary
from eagle_aot.runtime_runner.program.cache_pages import CachePages

Call = Callable[[], Tensor]
Part = TypeVar("Part")
"""Tensors that a part of a round returns, whatever holds them."""


class Recorder(Protocol):
    """Makes a step cheap to repeat, as `Executor.repeat` does."""

    def __call__(self, step: Callable[[], Part]) -> Callable[[], Part]:
        """Return a cheaper version of `step`."""


class Executor(Protocol):
    """Runs the methods of one opened program, which holds the KV caches. `records` says whether
    `repeat` records its step. `pages` gives memory to sequences, which have it if that is None."""

    name: str
    device: torch.device
    records: bool
    pages: CachePages | None

    def constants(self) -> Mapping[str, Sequence[Any]]:
        """Return the outputs of the program's constant methods, by name."""

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method on tensors of `device`. Its outputs stay valid across later runs."""

    def repeat(self, step: Callable[[], Part]) -> Callable[[], Part]:
        """Return a cheaper version of `step`, which may run once here (to record a CUDA graph).

        `step` must read and write the same tensors each time and none on the host. The tensors that
        it returns are valid until the next call.
        """


EXECUTORS = {"xnnpack": ("executorch",), "cuda": ("aoti", "executorch")}
"""The executors of a backend's artifacts, the default first."""


def open_program(
    directory: Path,
    manifest: Manifest,
    executor: str,
    *,
    cuda_graphs: bool = True,
    cache_memory: int | None = None,
) -> Executor:
    """Open the program in `directory` with the named executor, or its backend's default for "auto".
    Its caches take at most `cache_memory` bytes, which the executor "aoti" can limit.

    Raises UnsupportedError when the backend, the executor and this machine do not fit together,
    and ArtifactError when the program cannot be read.
    """
    backend = manifest.backend
    fitting = EXECUTORS.get(backend)
    if fitting is None:
        raise UnsupportedError(
            f"{directory}: backend {backend!r}: this version runs {', '.join(EXECUTORS)}"
        )
    chosen = fitting[0] if executor == "auto" else executor
    if chosen not in fitting:
        raise UnsupportedError(
            f"executor {executor!r} does not run {backend} artifacts: use {' or '.join(fitting)}"
        )
    methods = methods_of(manifest.drafter, manifest.methods)
    if manifest.backend == "cuda" and torch.cuda.is_available():
        check_multiprocessors(directory, manifest)
    if chosen == "aoti":
        from eagle_aot.runtime_runner.program.aoti import AotiExecutor

        return AotiExecutor(
            directory, manifest, methods, cuda_graphs=cuda_graphs, cache_memory=cache_memory
        )
    if cache_memory is not None:
        raise UnsupportedError(
            f"memory for caches (--kv-cache-memory): executor {chosen!r} has caches of a fixed "
            "size; leave it out here"
        )
    from eagle_aot.runtime_runner.program.executorch import ExecuTorchExecutor

    return ExecuTorchExecutor(directory, manifest, methods)


def check_multiprocessors(directory: Path, manifest: Manifest) -> None:
    """Raise UnsupportedError unless this GPU has the multiprocessors that an artifact fills, if it
    is for a GPU whose layers are one kernel: its blocks wait for each other."""
    device = manifest.device
    if device is None or device.compute_capability != "9.0":
        return
    count = torch.cuda.get_device_properties().multi_processor_count
    if count < device.multiprocessors:
        raise UnsupportedError(
            f"{directory}: compiled for {device.multiprocessors} multiprocessors, this GPU has "
            f"{count}: export on this machine"
        )


def check_memory(weights: int, caches: int, sequences: int, device: torch.device) -> None:
    """Raise UnsupportedError unless the device has enough free memory.

    `weights` and `caches` are bytes; the caches hold `sequences` sequences together.
    """
    free = free_bytes(device)
    if free is None or weights + caches <= free:
        return
    device_name = "the GPU" if device.type == "cuda" else "the host"
    fitting = (free - weights) * sequences // caches if free > weights else 0
    some = f" ({fitting} would fit)" if fitting else ""
    raise UnsupportedError(
        f"weights take {in_binary(weights)} and caches of {sequences} sequences "
        f"{in_binary(caches)}{some}, and {in_binary(free)} are free on {device_name}: {LOWER}"
    )
