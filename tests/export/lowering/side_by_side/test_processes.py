"""Methods lowered in processes beside this one: the same program, one line where one fails, and
nothing that outlives it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from torch.export import ExportedProgram

if not find_spec("triton"):
    pytest.skip("the CUDA backend needs triton to import", allow_module_level=True)

from executorch.backends.cuda.cuda_backend import CudaBackend

import support
from eagle_aot.artifact import COPY_ROWS, PROGRAM, WEIGHTS, Stage
from eagle_aot.common.errors import ExportError
from eagle_aot.common.progress import Progress
from eagle_aot.export.lowering import cuda
from eagle_aot.export.lowering.side_by_side import processes
from support.fake_gpu import FakeGpu, compiling_text
from support.small_lowering import PID, beside, small_pair, small_programs

TESTS = Path(support.__path__[0]).parent


@dataclass(frozen=True)
class Lowered:
    """What came of the pair's methods: files of two, beside this process and in turn, the stages
    of the first, how lowering the third one failed, and what was left of it."""

    beside: list[bytes]
    in_turn: list[bytes]
    stages: list[Stage]
    failure: ExportError
    left: list[Path]


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    pair, progress, directory = small_pair(), Progress(), tmp_path_factory.mktemp("lowered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "SharedGpu", FakeGpu)
        with pytest.raises(ExportError) as raised, beside(pair, directory, progress):
            programs = small_programs(pair)
            anything = programs.pop(COPY_ROWS)
            side_by_side = written(programs, directory)
            specs = {COPY_ROWS: [cuda.compile_specs(COPY_ROWS)]}
            CudaBackend.preprocess_multimethod({COPY_ROWS: [anything]}, specs)
    left = list(directory.iterdir())
    with compiling_text():
        in_turn = written(programs, directory)
    return Lowered(side_by_side, in_turn, progress.stages, raised.value, left)


def written(programs: dict[str, ExportedProgram], directory: Path) -> list[bytes]:
    """The files of a program of these methods, which are gone again."""
    with cuda.workspace(directory / "here"):
        program = cuda.lower(deepcopy(programs), {"get_answer": 42}, lambda stage: None)
        cuda.write(program, directory)
        files = [directory / name for name in (PROGRAM, WEIGHTS)]
        found = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    return found


def test_the_program_is_the_one_that_is_lowered_in_turn(lowered: Lowered) -> None:
    assert lowered.beside == lowered.in_turn


def test_what_each_method_took_is_told(lowered: Lowered) -> None:
    stages = {stage.name: stage for stage in lowered.stages}
    assert {"lower prefill", "lower target_verify"} == {n for n in stages if n.startswith("lower")}
    assert all(2**24 < stage.host_peak_bytes < 2**40 for stage in stages.values())


def test_a_failure_is_the_same_line(lowered: Lowered) -> None:
    assert str(lowered.failure) == "lowering failed: CUDA error: an illegal access"
    assert not lowered.left


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
