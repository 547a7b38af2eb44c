"""A fault is made in a directory of its own; a real command meets it, and is judged."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from threading import Event, Thread, Timer
from typing import BinaryIO

from support.refusals import beside_stages

Arguments = Sequence[str | Path]
Child = subprocess.Popen[bytes]

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What moves a terminal's cursor and colours its text."""


LIBRARIES_CACHES = {
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor",
}
"""Directories that libraries make when they are imported, and keep."""


@dataclass(frozen=True)
class Scene:
    """A fault's files lie in `directory`; `good` is an artifact that works."""

    directory: Path
    good: Path

    @property
    def transcript(self) -> Path:
        """Where the command's stderr goes while it runs."""
        return self.directory.with_name("stderr")

    @property
    def artifact(self) -> Path:
        """Where `copy_artifact` puts its copy."""
        return self.directory / "artifact"

    def copy_artifact(self) -> Path:
        """Copy the good artifact; files that are not changed are shared."""
        return Path(shutil.copytree(self.good, self.artifact, copy_function=os.link))


Drive = Callable[[Child, Scene], object]
"""What happens to a command while it runs."""


def leave_alone(child: Child, scene: Scene) -> None:
    """Let the command end by itself."""


def undo_nothing(scene: Scene) -> None:
    """Nothing was mounted or locked."""


def accept(scene: Scene, output: str) -> str | None:
    """Accept any output."""
    return None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault and the right answer to it.

    `arrange` makes the fault in a scene and returns the command's arguments. `code` is the exit
    code it must end with, and `also` are others that are right if it ended before `drive` acted on
    it. `says` is what its one line holds, or one of several texts; nothing where it is empty.
    `check` looks at stdout and at what was written, and returns what is wrong with it. `after`
    undoes what removing a scene does not. With `terminal` stderr is one. `address_space` and
    `file_size` are limits in bytes.
    """

    name: str
    arrange: Callable[[Scene], Arguments]
    says: str | tuple[str, ...] = ""
    command: str = "eagle-run"
    code: int = 1
    check: Callable[[Scene, str], str | None] = accept
    drive: Drive = leave_alone
    after: Callable[[Scene], object] = undo_nothing
    also: tuple[int, ...] = ()
    terminal: bool = False
    stdout: str | None = None
    address_space: int | None = None
    file_size: int | None = None
    seconds: float = 600.0

    def limit(self) -> None:
        """Runs in the child before the command."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
        if self.address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.address_space, self.address_space))
        if self.file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_size, self.file_size))
        if self.stdout == "closed":
            os.close(1)


def problems(fault: Fault, good: Path, root: Path) -> list[str]:
    """Make a fault below the empty directory `root`, run the command, and return all that is wrong
    with what it did."""
    scene = Scene(root / "scene", good)
    scene.directory.mkdir()
    (temporary := root / "tmp").mkdir()
    try:
        arguments = fault.arrange(scene)
        before = entries(scene.directory)
        code, output = run(fault, arguments, scene, temporary)
        said = scene.transcript.read_text(errors="replace")
        if fault.terminal and "Traceback" not in said:
            said = last_line(said)
        left = sorted(entries(scene.directory) - before - {"out"}) + sorted(entries(temporary))
        wrong = judged(fault, code, beside_stages(said), left)
        if not wrong and (problem := fault.check(scene, output)):
            wrong.append(problem)
        if (scene.directory / "out").exists() and fault.code:
            wrong.append("an output directory appeared")
        return wrong
    finally:
        fault.after(scene)


def judged(fault: Fault, code: int | None, said: str, left: list[str]) -> list[str]:
    """Return what is wrong with how the command ended; `said` is its stderr."""
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
        wrong.append(f"does not say {fault.says!r} but {said!r}")
    if code == fault.code == 1 and fault.stdout is None and not said.startswith("Error: "):
        wrong.append("no stated failure")
    if left:
        wrong.append(f"not removed: {', '.join(left)}")
    return wrong


def run(
    fault: Fault, arguments: Arguments, scene: Scene, temporary: Path
) -> tuple[int | None, str]:
    """Return the exit code, None after the time limit, and stdout."""
    output = temporary.with_name("stdout")
    with (
        open_stdout(fault, output) as stdout,
        open_stderr(fault, scene.transcript) as stderr,
        subprocess.Popen(
            [Path(sys.executable).with_name(fault.command), *map(str, arguments)],
            cwd=scene.directory,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=os.environ | LIBRARIES_CACHES | {"TMPDIR": str(temporary)},
            preexec_fn=fault.limit,
        ) as child,
        time_limit(child, fault.seconds) as late,
    ):
        fault.drive(child, scene)
        child.wait()
    text = output.read_text(errors="replace") if output.exists() else ""
    return None if late.is_set() else child.returncode, text


@contextmanager
def time_limit(child: Child, seconds: float) -> Iterator[Event]:
    """Kill a child that takes longer, or whose driver fails; the event says that it took longer."""
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


def open_stdout(fault: Fault, output: Path) -> BinaryIO:
    """Open what the command writes to: a file, a device, or a pipe whose reader is gone."""
    if fault.stdout == "pipe without a reader":
        reader, writer = os.pipe()
        os.close(reader)
        return os.fdopen(writer, "wb")
    return open(fault.stdout or output, "wb") if fault.stdout != "closed" else output.open("wb")


@contextmanager
def open_stderr(fault: Fault, errors: Path) -> Iterator[int]:
    """Open the file, or a terminal whose text goes there."""
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
    """Copy a terminal's text until no process has it open."""
    while True:
        try:
            file.write(os.read(screen, 4096))
        except OSError:
            return


def last_line(said: str) -> str:
    """Return what a terminal shows below its progress: the last line that is an error's."""
    _, error, line = ESCAPES.sub("", said).rpartition("Error: ")
    return error + line.strip() if error else ""


def entries(directory: Path) -> set[str]:
    """Return the names in a directory, hidden ones included."""
    return {path.name for path in directory.iterdir()}
