"""Methods lowered in processes beside this one: the same program, one line where one fails, and
nothing that outlives it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

if not find_spec("triton"):
    pytest.skip("the CUDA backend needs triton to import", allow_module_level=True)

from executorch.backends.cuda.cuda_backend import CudaBackend

import support
from eagle_aot.artifact import PREFILL, PROGRAM, WEIGHTS
from eagle_aot.common.errors import ExportError
from eagle_aot.common.progress import Progress
from eagle_aot.export.lowering import cuda
from eagle_aot.export.lowering.side_by_side import processes
from support.fake_gpu import BrokenGpu, FakeGpu, compiling_text
from support.small_lowering import PID, beside, small_pair, small_programs

TESTS = Path(support.__path__[0]).parent


def written(directory: Path, *, side_by_side: bool) -> tuple[list[bytes], Progress]:
    """The files of the pair's program."""
    directory.mkdir()
    pair, progress = small_pair(), Progress()
    around = beside(pair, directory, progress, jobs=2) if side_by_side else compiling_text()
    with around, cuda.workspace(directory / "here"):
        program = cuda.lower(small_programs(pair), {"get_answer": 42}, lambda stage: None)
        cuda.write(program, directory)
    assert {path.name for path in directory.iterdir()} == {PROGRAM, WEIGHTS}
    return [(directory / name).read_bytes() for name in (PROGRAM, WEIGHTS)], progress


def test_the_program_is_the_one_that_is_lowered_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SharedGpu", FakeGpu)
    files, progress = written(tmp_path / "beside", side_by_side=True)
    assert files == written(tmp_path / "in_turn", side_by_side=False)[0]
    stages = {stage.name: stage for stage in progress.stages}
    assert set(stages) == {"share weights", "lower prefill", "lower target_verify"}
    assert all(2**24 < stage.host_peak_bytes < 2**40 for stage in stages.values())


def test_a_failure_is_the_same_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SharedGpu", BrokenGpu)
    anything = torch.export.export(nn.Identity(), (torch.zeros(1),))
    with (
        pytest.raises(ExportError, match=r"^lowering failed: CUDA error: an illegal access$"),
        beside(small_pair(), tmp_path, Progress(), jobs=1),
    ):
        specs = {PREFILL: [cuda.compile_specs(PREFILL)]}
        CudaBackend.preprocess_multimethod({PREFILL: [anything]}, specs)
    assert not list(tmp_path.iterdir())


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    """None that is busy when an export is interrupted: it ends where the exporting one lets go of
    a pipe, as it does by being killed, too."""
    command = [sys.executable, "-m", "support.small_lowering", str(tmp_path)]
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
    """Where the system tells of the process whose id is written into the file, once it is."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return Path("/proc") / file.read_text().strip()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
