"""One fault, made and judged."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

from faults.fault import TRANSCRIPT, CannotMake, Fault
from faults.scene import Scene
from support.stages import beside_stages

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What moves a terminal's cursor and colours its text."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of a fault; `wrong` says why the row fails, `skipped` why it could not be made.

    `line` is all that the command said on stderr.
    """

    fault: str
    command: str
    code: int | None = None
    line: str = ""
    left: tuple[str, ...] = ()
    seconds: float = 0.0
    wrong: tuple[str, ...] = ()
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def try_fault(fault: Fault, good: Path) -> Row:
    """Make a fault in a directory of its own, run the command and look at everything it did."""
    root = Path(tempfile.mkdtemp(prefix="fault-"))
    scene = Scene(root / "scene", good)
    scene.directory.mkdir()
    (root / "tmp").mkdir()
    try:
        return judge(fault, scene, root / "tmp")
    except CannotMake as reason:
        return Row(fault=fault.name, command=fault.command, skipped=str(reason))
    except OSError as error:  # a driver's: the rows of others are not to be lost
        return Row(fault=fault.name, command=fault.command, wrong=(f"could not be made: {error}",))
    finally:
        fault.after(scene)
        shutil.rmtree(root)


def judge(fault: Fault, scene: Scene, temporary: Path) -> Row:
    """Run the command and hold what it did against what the fault declares."""
    arguments = [str(a) for a in fault.arrange(scene)]
    before = entries(scene.directory)
    began = time.monotonic()
    code, output, said = run(fault, arguments, scene, temporary)
    if fault.terminal and "Traceback" not in said:
        said = last_line(said)
    seconds = time.monotonic() - began
    left = sorted(entries(scene.directory) - before - {"out"}) + sorted(entries(temporary))
    wrong = [*judged(fault, code, said, left)]
    if not wrong and (problem := fault.check(scene, output)):
        wrong.append(problem)
    if (scene.directory / "out").exists() and fault.code:
        wrong.append("an output directory appeared")
    return Row(
        fault=fault.name,
        command=fault.command,
        code=code,
        line=beside_stages(said).strip().replace(f"{scene.directory}/", ""),
        left=tuple(left),
        seconds=seconds,
        wrong=tuple(wrong),
    )


def judged(fault: Fault, code: int | None, said: str, left: list[str]) -> list[str]:
    """What is wrong with how the command ended; `said` is its stderr."""
    said = beside_stages(said)
    if code is None:
        return [f"no end after {fault.seconds:.0f} s"]
    wrong = []
    if code not in (fault.code, *fault.also):
        wrong.append(f"exit code {code}, not {fault.code}")
    if "Traceback" in said:
        wrong.append("a traceback")
    if len(said.splitlines()) > 1:
        wrong.append(f"{len(said.splitlines())} lines on stderr")
    right = (fault.says,) if isinstance(fault.says, str) else fault.says
    if not any(line in said for line in right):
        wrong.append(f"does not say {fault.says!r}")
    if code == fault.code == 1 and fault.stdout is None and not said.startswith("Error: "):
        wrong.append("no stated failure")
    if left:
        wrong.append(f"left behind: {', '.join(left)}")
    return wrong


def run(
    fault: Fault, arguments: list[str], scene: Scene, temporary: Path
) -> tuple[int | None, str, str]:
    """Exit code (None after the time limit), stdout and stderr."""
    command = Path(sys.executable).with_name(fault.command)
    output, errors = temporary.parent / "stdout", temporary.parent / TRANSCRIPT
    with open_stdout(fault, output) as stdout, open_stderr(fault, errors) as stderr:
        child = subprocess.Popen(
            [command, *arguments],
            cwd=scene.directory,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=os.environ | {"TMPDIR": str(temporary), "MPLCONFIGDIR": "/tmp/matplotlib"},
            preexec_fn=fault.limit,
        )
        with time_limit(child, fault.seconds) as late:
            fault.drive(child, scene)
            child.wait()
    text = output.read_text(errors="replace") if output.exists() else ""
    code = None if late.is_set() else child.returncode
    return code, text, errors.read_text(errors="replace")


@contextmanager
def time_limit(child: "subprocess.Popen[bytes]", seconds: float) -> Iterator[Event]:
    """Kill a child that takes longer, or whose driver fails; the event says that it took longer.

    Drivers wait for something that the child does, and give up when it is dead.
    """
    late = Event()

    def end() -> None:
        late.set()
        child.kill()

    timer = Timer(seconds, end)
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
        child.kill()
        child.wait()


def open_stdout(fault: Fault, output: Path) -> Any:
    """Where the command writes: a file, a device, or a pipe whose reader is gone."""
    if fault.stdout == "pipe without a reader":
        reader, writer = os.pipe()
        os.close(reader)
        return os.fdopen(writer, "wb")
    if fault.stdout is not None and fault.stdout.startswith("/dev/"):
        return open(fault.stdout, "wb")
    return output.open("wb")


@contextmanager
def open_stderr(fault: Fault, errors: Path) -> Iterator[int]:
    """The file, or a terminal whose text goes there."""
    with errors.open("wb", buffering=0) as file:
        if not fault.terminal:
            yield file.fileno()
            return
        screen, terminal = os.openpty()
        copier = Thread(target=copy_screen, args=(screen, file))
        copier.start()
        try:
            yield terminal
        finally:
            os.close(terminal)
            copier.join()
            os.close(screen)


def copy_screen(screen: int, file: FileIO) -> None:
    """Until nobody has the terminal open."""
    while True:
        try:
            file.write(os.read(screen, 4096))
        except OSError:
            return


def last_line(said: str) -> str:
    """What a terminal shows below its progress: the last line that is an error's."""
    _, error, line = ESCAPES.sub("", said).rpartition("Error: ")
    return error + line.strip() if error else ""


def entries(directory: Path) -> set[str]:
    """Names in a directory, hidden ones too."""
    return {path.name for path in directory.iterdir()}
