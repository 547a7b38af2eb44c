"""What stands where an artifact should, and artifacts that go away while they are used."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path

from eagle_aot.artifact import PROGRAM
from faults.artifact_faults import HASH, asking
from faults.fault import Arguments, CannotMake, Fault
from faults.scene import Scene, flip, write

Child = subprocess.Popen[bytes]
POLL = 0.001  # s


def place_faults() -> Iterator[Fault]:
    """All of them."""
    yield Fault(
        name="artifact: no such directory",
        arrange=lambda scene: asking(scene.directory / "none"),
        says="no such artifact directory",
    )
    yield Fault(
        name="artifact: a file",
        arrange=lambda scene: asking(write(scene.directory / "file", b"")),
        says="no such artifact directory",
    )
    yield Fault(
        name="artifact: damaged, for eagle-bench",
        command="eagle-bench",
        arrange=_damaged_for_bench,
        says=HASH,
    )
    yield from vanishing_artifacts()


def vanishing_artifacts() -> Iterator[Fault]:
    """Removed at three moments: before the manifest is read, while the program is hashed, and
    once it is mapped, before the tokenizer is read."""
    yield Fault(
        name="artifact: emptied as the command starts",
        arrange=lambda scene: asking(scene.artifact()),
        drive=lambda child, scene: [path.unlink() for path in _place(scene).iterdir()],
        says="not an artifact",
    )
    yield Fault(
        name="artifact: removed while its files are hashed",
        arrange=lambda scene: asking(scene.artifact()),
        drive=remove_when(opened),
        # What is missed first depends on the moment.
        says=("not a readable ExecuTorch program", "No such file or directory"),
    )
    yield Fault(
        name="artifact: removed when its program has been mapped",
        arrange=lambda scene: asking(scene.artifact()),
        drive=remove_when(mapped),
        says="has no tokenizer",
    )


def remove_when(files: Callable[[int], Container[str]]) -> Callable[[Child, Scene], None]:
    """Remove the artifact once its program is among the files of the process."""

    def drive(child: Child, scene: Scene) -> None:
        program = str(_place(scene) / PROGRAM)
        while child.poll() is None:
            if program in files(child.pid):
                shutil.rmtree(_place(scene))
                return
            time.sleep(POLL)
        raise CannotMake("the program was not seen in use")

    return drive


def opened(process: int) -> list[str]:
    """What a process has open."""
    try:
        return [os.readlink(entry.path) for entry in os.scandir(f"/proc/{process}/fd")]
    except OSError:  # closed, or ended, since the directory was read
        return []


def mapped(process: int) -> str:
    """What a process has mapped, as the kernel prints it."""
    try:
        return Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return ""


def _place(scene: Scene) -> Path:
    return scene.directory / "artifact"


def _damaged_for_bench(scene: Scene) -> Arguments:
    artifact = scene.artifact()
    flip(artifact / PROGRAM, 0.3)
    return [artifact, "--json"]
