"""Compiles methods of a CUDA program in parallel, each in a separate process.

The pair is saved once, and every process maps the file. Each process traces and compiles one method
and sends the result to the exporting process. That process traces all methods, too, and takes a
compiled method only if its graph is the same.
"""

import fcntl
import hashlib
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from tqdm import tqdm

from eagle_aot.artifact import Stage
from eagle_aot.common.errors import EagleError, ExportError
from eagle_aot.common.memory import host_own_peak_bytes
from eagle_aot.common.progress import Progress
from eagle_aot.export.as_export_error import as_export_error
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.lowering.backend import CACHE_DIR, named_cache_dir
from eagle_aot.export.lowering.patches import COMPILE_METHOD, TIME_KERNEL, Replacement
from eagle_aot.export.method_spec import CACHES
from eagle_aot.export.methods import method_specs, trace_methods
from eagle_aot.export.pair import Pair
from eagle_aot.export.spec import CUDA
from eagle_aot.targets.decoder.kv_cache import leave_untouched

if TYPE_CHECKING:  # each takes seconds to import, and processes start before that
    from executorch.backends.cuda.cuda_weight_collector import CudaWeightArtifact
    from executorch.exir.backend.backend_details import PreprocessResult

WORKER = f"from {__name__} import main; main()"
"""What a process runs, with the directory and its method as arguments."""

JOB, TIMING = "job.pt", "timing.lock"
"""Files that all processes use: the job, and a lock for the process that times kernels."""

OVERHEAD = 4 << 30
"""GPU bytes that a process takes in addition to the weights: CUDA's context, the largest tensor
again while kernels are tuned, and activations. 3.9 GiB for Gemma-4-31B."""


@dataclass(frozen=True, slots=True)
class Job:
    """The pair, how its methods are made, and how many CPU threads each process may use."""

    pair: Pair
    lengths: MethodLengths
    use_splitk: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled method, and its stage, which ended at `ended` of `time.perf_counter`.

    `graph` is the digest of what was compiled. Files of weights belong to the process that
    unpickles this.
    """

    graph: str
    result: "PreprocessResult"
    weights: "CudaWeightArtifact"
    stage: Stage
    ended: float


@contextmanager
def compiled_in_parallel(
    names: Sequence[str], job: Job, *, jobs: int, directory: Path, progress: Progress
) -> Iterator[Replacement | None]:
    """Compile the named methods in up to `jobs` processes while the block runs.

    Yields the replacement for `COMPILE_METHOD` that takes what they compiled, or None if the GPU
    has memory for one of them only. `directory` is made, and is deleted after the block. Processes
    end with the block, and with this process, however it ends.
    """
    if (fitting := min(jobs, processes_that_fit(job.pair))) < jobs:
        progress.console.print(f"--jobs {jobs}: the GPU's free memory is enough for {fitting}")
    if fitting == 1:
        yield None
        return
    directory.mkdir()
    lifeline, end = os.pipe()
    pool = ThreadPoolExecutor(fitting)
    try:
        with progress.stage("save the pair"), as_export_error("saving the pair failed"):
            save_job(job, directory / JOB)
        compile_one = partial(compile_in_process, directory, named_cache_dir(), lifeline, progress)
        futures = {name: pool.submit(compile_one, name) for name in names}
        yield lambda _: partial(take_compiled, futures, directory / JOB)
    finally:
        os.close(end)
        pool.shutdown(cancel_futures=True)
        os.close(lifeline)
        shutil.rmtree(directory, ignore_errors=True)


def processes_that_fit(pair: Pair) -> int:
    """Return how many processes the GPU's free memory is enough for, at least one."""
    if not torch.cuda.is_available():
        return sys.maxsize
    torch.cuda.empty_cache()
    return max(torch.cuda.mem_get_info()[0] // (pair.weight_bytes + OVERHEAD), 1)


def compile_in_process(
    directory: Path, cache_dir: str | None, lifeline: int, progress: Progress, name: str
) -> Compiled:
    """Compile a method in a process that runs `main`, with the compiler's files in `cache_dir` or
    a directory of its own. Raises the EagleError that it raised."""
    began = time.perf_counter()
    command = [sys.executable, "-P", "-c", WORKER, str(directory), name]
    environment = os.environ | {CACHE_DIR: cache_dir or str(directory / name)}
    # In a new session it gets no Ctrl-C from the terminal.
    with subprocess.Popen(
        command, stdin=lifeline, stdout=subprocess.PIPE, start_new_session=True, env=environment
    ) as process:
        assert process.stdout is not None
        sent = process.stdout.read()
    if not sent:
        raise ExportError(
            f"lowering failed: the process that compiled {name} was killed, as systems do where "
            "memory is short: --jobs 1 takes the least"
        )
    outcome: Compiled | EagleError = pickle.loads(sent)
    if isinstance(outcome, EagleError):
        raise outcome
    progress.record_parallel(outcome.stage, began, outcome.ended)
    return outcome


def take_compiled(
    futures: "Mapping[str, Future[Compiled]]",
    job: Path,
    edge_program: ExportedProgram,
    compile_specs: Any,
    collector: Any,
) -> "PreprocessResult":
    """Return a method as another process compiled it, instead of compiling it.

    The file of the job is deleted when no process needs it: the weights are written next.
    """
    from executorch.backends.cuda.cuda_backend import CudaBackend

    name = CudaBackend.method_name_from_compile_specs(compile_specs)
    compiled = futures[name].result()
    if all(future.done() for future in futures.values()):
        job.unlink(missing_ok=True)
    if compiled.graph != graph_digest(edge_program):
        raise ExportError(f"a worker process traced a different graph for {name}: use --jobs 1")
    device = CudaBackend.get_device_name()
    collector.add_preprocess_result(compiled.result, compiled.weights, device)
    return compiled.result


def graph_digest(program: ExportedProgram) -> str:
    """Return the SHA-256 of a graph and of what its inputs and outputs are."""
    return hashlib.sha256(f"{program.graph}{program.graph_signature}".encode()).hexdigest()


def save_job(job: Job, path: Path) -> None:
    """Save a job; caches, which are zeros, without their contents."""
    caches = [module for module in job.pair.modules() if isinstance(module, CACHES)]
    contents = [dict(cache.named_buffers()) for cache in caches]
    for cache in caches:
        cache.to("meta")
    torch.save(job, path)
    for cache, buffers in zip(caches, contents, strict=True):
        for name, buffer in buffers.items():
            setattr(cache, name, buffer)


def load_job(path: Path) -> Job:
    """Load a job; weights are mapped from the file, caches are zeros without memory."""
    job = torch.load(path, mmap=True, weights_only=False)
    assert isinstance(job, Job)
    for module in job.pair.modules():
        if isinstance(module, CACHES):
            leave_untouched(module)
    return job


def main() -> None:
    """Compile a method of a directory's job, both named by arguments; send the `Compiled`, or the
    EagleError, to standard output. Ends this process, and does so at once when its input ends.
    """
    directory, name = Path(sys.argv[1]), sys.argv[2]
    threading.Thread(target=end_with_stdin, daemon=True).start()
    output = os.dup(1)
    os.dup2(2, 1)  # whatever libraries print
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    # tqdm's own lock, which Inductor's progress bars take, is a semaphore that outlives a kill.
    tqdm.set_lock(threading.RLock())
    try:
        outcome: Compiled | EagleError = compile_method(load_job(directory / JOB), name, directory)
    except EagleError as error:
        outcome = error
    with open(output, "wb") as file:
        Pickler(file).dump(outcome)
    end_process()  # before it deletes files of weights that it has sent


class Pickler(pickle.Pickler):
    """Passes files of weights to the process that unpickles them."""

    def reducer_override(self, value: Any) -> Any:
        from executorch.exir._serialize._cord import FileBackedData

        if isinstance(value, FileBackedData):
            return FileBackedData, (value._path, True, value.sha256())
        return NotImplemented


def end_with_stdin() -> None:
    """Wait for the end of standard input, and end this process."""
    os.read(0, 1)
    end_process()


def end_process() -> None:
    """Kill this process, which leads a session, and the compilers that it started."""
    os.killpg(os.getpid(), signal.SIGKILL)


def compile_method(job: Job, name: str, directory: Path) -> Compiled:
    """Trace and compile one method in this process. Raises ExportError."""
    from torch._inductor import config

    from eagle_aot.export.lowering import cuda

    config.compile_threads = job.threads
    torch.set_num_threads(job.threads)
    with as_export_error("tracing failed"):
        specs = method_specs(job.pair, job.lengths, job.use_splitk)
        programs = trace_methods({name: specs[name]}, job.lengths.max_batch_size, CUDA)
    compiled: list[Compiled] = []
    replacements: dict[Any, Replacement] = {
        COMPILE_METHOD: lambda compile_one: partial(record_compiled, compile_one, compiled),
        TIME_KERNEL: partial(measure_alone, directory / TIMING),
    }
    with as_export_error("lowering failed"):
        cuda.compile_methods(programs, {}, replacements)
    (only,) = compiled
    return only


def record_compiled(
    compile_one: Callable[..., Any],
    compiled: list[Compiled],
    edge_program: ExportedProgram,
    compile_specs: Any,
    collector: Any,
) -> "PreprocessResult":
    """Compile a method, and append it to a list instead of adding its weights to the program's."""
    from executorch.backends.cuda.cuda_backend import CudaBackend

    added: list[tuple[PreprocessResult, CudaWeightArtifact]] = []
    collector.add_preprocess_result = lambda result, weights, _: added.append((result, weights))
    graph, started = graph_digest(edge_program), time.perf_counter()
    compile_one(edge_program, compile_specs, collector)
    ended = time.perf_counter()
    ((result, weights),) = added
    gpu_peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    name = f"lower {CudaBackend.method_name_from_compile_specs(compile_specs)}"
    stage = Stage(name, ended - started, host_own_peak_bytes(), gpu_peak)
    compiled.append(Compiled(graph, result, weights, stage, ended))
    return result


def measure_alone(lock: Path, measure: Callable[..., Any]) -> Callable[..., Any]:
    """Return `measure`, which times a kernel, such that one process at a time runs it."""

    def measure_locked(*args: Any, **kwargs: Any) -> Any:
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            return measure(*args, **kwargs)

    return measure_locked
