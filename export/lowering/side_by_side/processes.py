"""The processes that methods are lowered in, from the first to the last."""

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_aot.common.errors import ExportError
from eagle_aot.common.progress import Progress
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.lowering.side_by_side.method import Lowered, Work, begin, lower_method
from eagle_aot.export.lowering.side_by_side.shared_gpu import SharedGpu, free_room
from eagle_aot.export.lowering.side_by_side.shared_pair import SharedPair
from eagle_aot.export.pair import Pair
from eagle_aot.export.stated import stated

if TYPE_CHECKING:
    from eagle_aot.export.lowering.side_by_side.compiled import Compiled


@contextmanager
def lowered_beside(
    names: Sequence[str],
    pair: Pair,
    lengths: MethodLengths,
    *,
    splits_keys: bool,
    jobs: int,
    gpu_memory: int | None,
    directory: Path,
    progress: Progress,
) -> Iterator[None]:
    """Lower the CUDA methods of a prepared pair in up to `jobs` processes while the block runs,
    which finds them compiled where it lowers the same methods itself.

    They begin in the order of `names`, and have the GPU's memory as `room.may_begin` says: those
    that need most of it, the target's, are to be first. Moves the pair's weights into memory that
    all share. The processes and this one take up to `gpu_memory` bytes of the GPU, or what is free.
    Each traces and compiles for itself; what it compiled lies in `directory`, which is made and is
    gone after the block. No process outlives the block, or this process. Raises in the block, where
    it lowers a method, what lowering that method raised.
    """
    with progress.stage("share weights"), stated("sharing weights failed"):
        shared = SharedPair(pair)
    context = get_context("spawn")  # a fork of a process that has used a GPU cannot use it
    ends, lifeline = context.Pipe(duplex=False)
    gpu = SharedGpu(context, free_room(jobs, gpu_memory), len(names))
    directory.mkdir()
    work = Work(
        shared,
        lengths,
        splits_keys,
        gpu,
        directory,
        max(len(os.sched_getaffinity(0)) // jobs, 1),
        ends,
    )
    pool = ProcessPoolExecutor(jobs, context, begin, (work,))
    try:
        with progress.stage("begin processes"):
            futures = {name: pool.submit(lower_method, name, at) for at, name in enumerate(names)}
            for future in futures.values():
                future.add_done_callback(lambda done: _tell(done, progress))
            from eagle_aot.export.lowering.side_by_side.compiled import taken_over  # takes seconds
        with taken_over(lambda name: _wait(name, futures[name])):
            yield
    finally:
        with progress.stage("end processes"):
            lifeline.close()  # which kills them: to end of themselves they would take seconds
            pool.shutdown(cancel_futures=True)
            ends.close()
            shared.close()
            shutil.rmtree(directory, ignore_errors=True)


def _tell(done: "Future[Lowered]", progress: Progress) -> None:
    if not done.cancelled() and done.exception() is None:
        lowered = done.result()
        progress.beside(lowered.stage, lowered.began, lowered.compiled.ended)


def _wait(name: str, future: "Future[Lowered]") -> "Compiled":
    try:
        return future.result().compiled
    except BrokenProcessPool as error:
        raise ExportError(
            f"lowering failed: a process beside this one was ended before {name} was compiled, as "
            "systems do where memory is short: --jobs 1 takes the least"
        ) from error
