"""One method, lowered in a process that exists for it."""

import logging
import os
import signal
import threading
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

from eagle_aot.artifact import Stage
from eagle_aot.common.memory import host_own_peak_bytes
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.lowering.side_by_side.shared_gpu import SharedGpu
from eagle_aot.export.lowering.side_by_side.shared_pair import SharedPair
from eagle_aot.export.methods import method_specs
from eagle_aot.export.spec import CUDA
from eagle_aot.export.stated import stated
from eagle_aot.export.trace import traced

if TYPE_CHECKING:
    from eagle_aot.export.lowering.side_by_side.compiled import Compiled


@dataclass(frozen=True, slots=True)
class Work:
    """What each process is given: the pair, how its methods are made, and what it may use.

    It compiles below `directory`, with `threads` threads, until nobody holds the other end of
    `lifeline` any more.
    """

    pair: SharedPair
    lengths: MethodLengths
    splits_keys: bool
    gpu: SharedGpu
    directory: Path
    threads: int
    lifeline: Connection


@dataclass(frozen=True, slots=True)
class Lowered:
    """A compiled method, what compiling cost, and when its process began, by `perf_counter`."""

    compiled: "Compiled"
    stage: Stage
    began: float


_given: Work
"""This process's."""


def begin(work: Work) -> None:
    """Make this a process for `lower_method`, which ends with the one that spawned it."""
    global _given
    _given = work
    os.setsid()  # an interrupt from the terminal is that one's to take
    threading.Thread(target=_end_with, args=(work.lifeline,), daemon=True).start()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(work.threads)
    # By itself tqdm, by which Inductor waits for kernels, makes a semaphore that all processes of a
    # machine see, and which would outlive one that is killed.
    tqdm.set_lock(threading.RLock())


def _end_with(lifeline: Connection) -> None:
    """Kill this process, and the compilers that it calls, when the other end is closed."""
    lifeline.poll(None)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def lower_method(name: str, place: int) -> Lowered:
    """Trace and compile a method at a place in the queue for the GPU. Raises ExportError."""
    try:
        return _lowered(name, place)
    finally:
        _given.gpu.room.leave(place)


def _lowered(name: str, place: int) -> Lowered:
    from torch._inductor import config

    from eagle_aot.export.lowering import cuda
    from eagle_aot.export.lowering.side_by_side.compiled import compiled_apart

    began, work = time.perf_counter(), _given
    os.environ.setdefault(cuda.CACHE_DIR, str(work.directory / str(os.getpid())))
    config.compile_threads = work.threads
    if torch.cuda.is_initialized():  # for a method before
        torch.cuda.reset_peak_memory_stats()
    with stated("tracing failed"):
        specs = method_specs(work.pair.pair(), work.lengths, work.splits_keys)
        programs = traced({name: specs[name]}, work.lengths.max_batch_size, CUDA)
    with stated("lowering failed"), compiled_apart(work.gpu, place) as compiled:
        cuda.compiled(programs, {}, lambda stage: None)
    (only,) = compiled
    gpu_peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    stage = Stage(f"lower {name}", only.seconds, host_own_peak_bytes(), gpu_peak)
    return Lowered(only, stage, began)
