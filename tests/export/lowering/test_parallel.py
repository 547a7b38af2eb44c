"""Methods compiled in processes of their own: the same program, one line where one fails, and
nothing that outlives the export."""

import gc
import hashlib
import io
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.export import ExportedProgram

if not find_spec("triton"):
    pytest.skip("the CUDA backend needs triton to import", allow_module_level=True)

from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_weight_collector import CudaWeightArtifact
from executorch.exir._serialize._cord import FileBackedData
from executorch.exir.backend.backend_details import PreprocessResult
from torch._inductor.runtime.benchmarking import InductorBenchmarker

import support
from eagle_aot.artifact import COPY_ROWS, PROGRAM, WEIGHTS, Stage
from eagle_aot.common.errors import ExportError
from eagle_aot.common.progress import Progress
from eagle_aot.export import resolve_checkpoints
from eagle_aot.export.loading.load import load_pair
from eagle_aot.export.lowering import cuda, parallel
from eagle_aot.export.lowering.parallel import Compiled, Job, Pickler, load_job, save_job
from eagle_aot.export.lowering.patches import COMPILE_METHOD, TIME_KERNEL, Replacement, applied
from eagle_aot.export.pair import Pair
from eagle_aot.export.prepare.int4 import pack_int4
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.recurrent_cache import StateSizes
from eagle_aot.targets.int4.linear import PackedModule
from support.pairs import dummy, head_of
from support.small_lowering import (
    LENGTHS,
    PID,
    compiling_text,
    in_parallel,
    small_pair,
    small_programs,
)

TESTS = Path(support.__path__[0]).parent
POSITIONS = 2**18
"""Of two sequences: caches of 269 MB, whose memory is never touched."""


@dataclass(frozen=True)
class Lowered:
    """Two methods' files, compiled in parallel and by this process; the stages of the first, how
    the third method failed, and what was left of the directory."""

    in_parallel: list[bytes]
    programs: dict[str, ExportedProgram]
    stages: list[Stage]
    failure: ExportError
    left: list[Path]


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    pair, progress, directory = small_pair(), Progress(), tmp_path_factory.mktemp("lowered")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
        monkeypatch.setattr(parallel, "WORKER", "")
        with in_parallel(pair, directory, progress) as take_compiled:
            assert take_compiled is not None
            programs = small_programs(pair)
            fails = programs.pop(COPY_ROWS)
            files = written(programs, directory, take_compiled)
            with (
                pytest.raises(ExportError) as raised,
                applied([COMPILE_METHOD], {COMPILE_METHOD: take_compiled}),
            ):
                CudaBackend.preprocess(fails, cuda.compile_specs(COPY_ROWS))
    left = list(directory.iterdir())
    return Lowered(files, programs, progress.stages, raised.value, left)


def written(
    programs: dict[str, ExportedProgram], directory: Path, take_compiled: Replacement | None = None
) -> list[bytes]:
    """Return the files of a program of these methods, and delete them."""
    with cuda.workspace(directory / "here"):
        constants = {"get_answer": 42}
        program = cuda.lower(deepcopy(programs), constants, lambda stage: None, take_compiled)
        cuda.write(program, directory)
        files = [directory / name for name in (PROGRAM, WEIGHTS)]
        contents = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    return contents


@pytest.mark.slow
def test_the_program_is_the_one_that_one_process_makes(lowered: Lowered, tmp_path: Path) -> None:
    with compiling_text():
        one_by_one = written(lowered.programs, tmp_path)
    assert lowered.in_parallel == one_by_one


def test_the_stage_of_each_method_is_recorded(lowered: Lowered) -> None:
    stages = {stage.name: stage for stage in lowered.stages}
    assert {"lower prefill", "lower target_verify"} == {n for n in stages if n.startswith("lower")}
    assert all(2**24 < stage.host_peak_bytes < 2**40 for stage in stages.values())


def test_a_failure_is_the_line_of_the_process_that_failed(lowered: Lowered) -> None:
    assert str(lowered.failure) == "lowering failed: CUDA error: an illegal access"
    assert not lowered.left


def test_interrupting_an_export_ends_its_processes(tmp_path: Path) -> None:
    """Those that are busy, too: they end when the exporting one closes a pipe, as it does when it
    is killed."""
    command = [sys.executable, "-m", "support.small_lowering", str(tmp_path)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=":")
        exporting = subprocess.Popen(command, cwd=TESTS, stderr=subprocess.PIPE, text=True)
    try:
        compiling = process_in(tmp_path / PID)
        assert compiling.exists()
        exporting.send_signal(signal.SIGINT)
        errors = exporting.communicate(timeout=60)[1]
    finally:
        exporting.kill()
    wait_until(lambda: not compiling.exists())
    assert errors.rstrip().endswith("KeyboardInterrupt") and "leaked" not in errors
    assert [path.name for path in tmp_path.iterdir()] == [PID]


def process_in(file: Path) -> Path:
    """Return the /proc directory of the process that writes its id into the file."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return Path("/proc") / file.read_text().strip()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_process_is_an_export_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "WORKER", "import os; os.kill(os.getpid(), 9)")
    with (
        open("/dev/null") as lifeline,
        pytest.raises(ExportError, match=r"^lowering failed: .* compiled prefill was killed, .*1"),
    ):
        parallel.compile_in_process(tmp_path, None, lifeline.fileno(), Progress(), "prefill")


def test_a_method_that_was_traced_otherwise_is_refused(tmp_path: Path) -> None:
    program = torch.export.export(nn.Identity(), (torch.zeros(1),))
    result = PreprocessResult(processed_bytes=b"", debug_handle_map={})
    stage = Stage("lower prefill", 1.0, 0, 0)
    future: Future[Compiled] = Future()
    future.set_result(Compiled("another", result, CudaWeightArtifact([], {}), stage, 2.0))
    (job := tmp_path / "job").touch()
    take = partial(parallel.take_compiled, {"prefill": future}, job)
    with (
        applied([COMPILE_METHOD], {COMPILE_METHOD: lambda _: take}),
        pytest.raises(
            ExportError,
            match=r"a worker process traced a different graph for prefill: use --jobs 1$",
        ),
    ):
        CudaBackend.preprocess(program, cuda.compile_specs("prefill"))
    assert not job.exists(), "weights are written next, and no process needs it"


def test_a_file_of_weights_belongs_to_the_process_that_receives_it(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"weights")
    data, sent = FileBackedData(str(path), cleanup=False), io.BytesIO()
    Pickler(sent).dump(data)
    received = pickle.loads(sent.getvalue())
    assert received.to_bytes() == b"weights"
    assert received.sha256() == hashlib.sha256(b"weights").digest()
    del received
    gc.collect()
    assert not path.exists()


def test_jobs_are_limited_by_the_memory_of_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, progress, printed = small_pair(), Progress(), StringIO()
    need = pair.weight_bytes + parallel.OVERHEAD
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for free, fitting in ((need - 1, 1), (2 * need - 1, 1), (2 * need, 2), (9 * need, 9)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free, 80 << 30))
        assert parallel.processes_that_fit(pair) == fitting
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (need, 80 << 30))
    progress.console = Console(file=printed)
    job = Job(pair, LENGTHS, use_splitk=True, threads=1)
    with parallel.compiled_in_parallel(
        ["prefill"], job, jobs=4, directory=tmp_path / "unused", progress=progress
    ) as take_compiled:
        assert take_compiled is None and not list(tmp_path.iterdir())
    assert printed.getvalue() == "--jobs 4: the GPU's free memory is enough for 1\n"


def test_kernels_are_timed_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = threading.Lock()

    def measure(benchmarker: InductorBenchmarker, seconds: float) -> float:
        assert busy.acquire(blocking=False), "something else is being timed"
        time.sleep(seconds)
        busy.release()
        return seconds

    alone = {TIME_KERNEL: partial(parallel.measure_alone, tmp_path / "lock")}
    monkeypatch.setattr(InductorBenchmarker, "benchmark_gpu", measure)
    with applied([TIME_KERNEL], alone), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(InductorBenchmarker().benchmark_gpu, [0.01] * 8)) == [0.01] * 8


@pytest.fixture
def pair() -> Pair:
    """A pair as methods are traced from it: random, packed, one layer for each tap of the head."""
    checkpoints = resolve_checkpoints(dummy(dummy_layers=3))
    sizes = CacheSpec(POSITIONS, torch.bfloat16, sequences=2, on_host=True)
    return pack_int4(load_pair(checkpoints, torch.bfloat16, sizes).pair, 132)


def saved_and_loaded(pair: Pair, directory: Path) -> Pair:
    save_job(Job(pair, LENGTHS, use_splitk=True, threads=1), directory / "job.pt")
    return load_job(directory / "job.pt").pair


def tensors(pair: Pair) -> dict[str, Tensor]:
    """All of them, by all of their names."""
    parameters = dict(pair.named_parameters(remove_duplicate=False))
    return parameters | dict(pair.named_buffers(remove_duplicate=False))


def all_forms(pair: Pair) -> dict[str, tuple[object, ...]]:
    return {name: (t.shape, t.stride(), t.dtype) for name, t in tensors(pair).items()}


def test_a_saved_pair_is_the_same(pair: Pair, tmp_path: Path) -> None:
    assert any(isinstance(module, PackedModule) for module in pair.modules())
    before = {
        name: (tensor.detach().clone(), type(tensor), tensor.requires_grad)
        for name, tensor in weights(pair).items()
    }
    forms = all_forms(pair)
    loaded = saved_and_loaded(pair, tmp_path)
    for either in (pair, loaded):
        assert all_forms(either) == forms
        for name, tensor in weights(either).items():
            values, kind, requires_grad = before[name]
            assert torch.equal(tensor, values) and type(tensor) is kind, name
            assert tensor.requires_grad == requires_grad, name
        assert head_of(either).embed_tokens.weight is either.target.embed_weight
    assert str(loaded) == str(pair)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def weights(pair: Pair) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors(pair).items() if "kv_cache" not in name}


def test_caches_take_no_memory_and_no_disk(pair: Pair, tmp_path: Path) -> None:
    states = CacheSpec(POSITIONS, torch.float32, sequences=64, on_host=True)
    pair.kv_cache = states.recurrent(
        StateSizes(key_heads=16, heads=48, key_dim=128, value_dim=128, taps=4)
    )
    caches = {name: tensor for name, tensor in tensors(pair).items() if "kv_cache" in name}
    size = sum(tensor.nbytes for tensor in caches.values())
    before = resident_bytes()
    loaded = tensors(saved_and_loaded(pair, tmp_path))
    assert all(tensors(pair)[name] is cache for name, cache in caches.items())
    assert len({loaded[name].data_ptr() for name in caches}) == len(caches)
    assert size > 200e6 and resident_bytes() - before < size / 10
    assert (tmp_path / "job.pt").stat().st_size < 1.1 * pair.weight_bytes
    (first, *_) = caches
    assert not loaded[first].flatten()[::4096].any()
