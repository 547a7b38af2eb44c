"""Faults around `eagle-export`: disks that fill up, directories that vanish, and signals at every
stage, with what the next export finds."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from eagle_aot.artifact import Manifest
from faults.trial import ESCAPES, Arguments, Child, Drive, Fault, Scene, entries

LARGEST_FILE = 100_000  # bytes, less than the shipped pair's program
CHUNK = bytes(2**20)
POLL = 0.001  # s
SOON = 0.2  # s into a stage
STAGES = {
    "load": 0.0,
    "self-test: text": SOON,
    "self-test: drafts": SOON,
    "trace": SOON,
    "check graphs": 0.0,
    "import the compiler": SOON,
    "lower": SOON,
    "assemble": SOON,
    "write": 0.0,
}
"""When within each the signal is sent: at once where the shipped pair takes a few milliseconds."""
WRITING = ("trace", "check graphs", "import the compiler", "lower", "assemble", "write")
"""The stages in which an unfinished artifact lies on the disk."""


def export_faults() -> Iterator[Fault]:
    """Yield all of them."""
    yield from full_disks()
    yield from vanishing_directories()
    yield two_at_once()
    for stage in STAGES:
        yield interrupted(stage)
        yield killed(stage)
    yield Fault(
        name="memory: a model that is too large",
        command="eagle-export",
        arrange=lambda scene: [
            *("--target-model", "gemma4-31b", "--load-format", "dummy", "--backend", "xnnpack"),
            *("--output-dir", scene.directory / "out"),
        ],
        address_space=6 * 2**30,
        says="out of memory on the host",
    )


def export_into(directory: Path) -> Arguments:
    """Return the arguments of an export of the shipped pair, quick by a short context."""
    pair = ("--target-model", "gemma4-tiny", "--backend", "xnnpack", "--max-seq-len", "128")
    return [*pair, "--output-dir", directory / "out"]


def parent(scene: Scene) -> Path:
    """Return the directory that artifacts are exported into a part of."""
    return scene.directory / "parent"


def into_parent(scene: Scene) -> Arguments:
    """Return the arguments of an export into a new directory."""
    parent(scene).mkdir()
    return export_into(parent(scene))


def nothing_in_parent(scene: Scene, output: str = "") -> str | None:
    """Return what is wrong unless nothing was left there."""
    names = sorted(entries(parent(scene)))
    return f"left: {', '.join(names)}" if names else None


def whole_artifact(scene: Scene) -> str | None:
    """Return what is wrong unless there is one artifact, `out`, and nothing else. Raises
    ArtifactError for one that is not complete."""
    if names := sorted(entries(parent(scene)) - {"out"}):
        return f"left: {', '.join(names)}"
    Manifest.read(parent(scene) / "out").verify(parent(scene) / "out")
    return None


def full_disks() -> Iterator[Fault]:
    """Yield disks that have no room for the program; the shipped pair's artifact takes 31 MB."""
    disks: dict[str, tuple[str, Drive, str]] = {
        "no room for the weights": ("16m", lambda child, scene: None, "free on its disk: choose"),
        "full while the artifact is written": ("64m", fill_disk, "No space left on device"),
    }
    for name, (size, drive, says) in disks.items():
        yield Fault(
            name=f"disk: {name}",
            command="eagle-export",
            arrange=lambda scene, size=size: onto_disk(scene, size),  # type: ignore[misc]
            drive=drive,
            says=says,
            check=nothing_in_parent,
            after=lambda scene: done("umount", parent(scene)),
        )
    yield Fault(
        name="disk: refuses files beyond a size",
        command="eagle-export",
        arrange=lambda scene: export_into(scene.directory),
        says="File too large",
        file_size=LARGEST_FILE,
    )


def onto_disk(scene: Scene, size: str) -> Arguments:
    """Return the arguments of an export to a disk of this size."""
    parent(scene).mkdir()
    if not done("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", parent(scene)):
        pytest.skip("no disk can be mounted here")
    return export_into(parent(scene))


def done(*command: str | Path) -> bool:
    """Run a command of the system and return whether it succeeded."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def fill_disk(child: Child, scene: Scene) -> None:
    """Fill the disk for as long as the export runs that has begun to write."""
    await_partial(child, parent(scene))
    others = parent(scene) / "others"
    with suppress(OSError), others.open("wb", buffering=0) as file:
        while file.write(CHUNK):
            pass
    child.wait()
    others.unlink()


def await_partial(child: Child, directory: Path) -> Path:
    """Return the hidden directory that an export writes into, once it is there."""
    while child.poll() is None:
        if partial := list(directory.glob(".out.partial-*")):
            time.sleep(1.0)  # the check of the directory makes one for a moment
            if partial[0].exists():
                return partial[0]
        time.sleep(POLL)
    pytest.skip("the export ended before it wrote anything")


def vanishing_directories() -> Iterator[Fault]:
    """Yield directories that another process removes while the export runs."""
    yield Fault(
        name="output: the unfinished artifact is removed",
        command="eagle-export",
        arrange=into_parent,
        drive=lambda child, scene: shutil.rmtree(await_partial(child, parent(scene))),
        says="cannot be written",
        check=nothing_in_parent,
    )
    yield Fault(
        name="output: its parent is removed",
        command="eagle-export",
        arrange=into_parent,
        drive=lambda child, scene: shutil.rmtree(await_partial(child, parent(scene)).parent),
        says="cannot be written",
    )


def export_again(child: Child) -> "subprocess.CompletedProcess[str]":
    """Run the same command once more."""
    assert isinstance(child.args, list)
    return subprocess.run(child.args, capture_output=True, check=False, text=True)


def two_at_once() -> Fault:
    """Return two exports to one directory: both end well, and the artifact is whole."""
    second: list[int] = []
    return Fault(
        name="output: two exports at the same time",
        command="eagle-export",
        arrange=into_parent,
        drive=lambda child, scene: second.append(export_again(child).returncode),
        check=lambda scene, output: (
            f"the second ended with {second}" if second != [0] else whole_artifact(scene)
        ),
        code=0,
    )


def interrupted(stage: str) -> Fault:
    """Return an interrupt. Nothing may be left; an export that had ended before is whole."""

    def check(scene: Scene, output: str) -> str | None:
        ended = (parent(scene) / "out").exists()
        problem = whole_artifact(scene) if ended else nothing_in_parent(scene)
        return in_time(problem, had_ended(scene, stage))

    return Fault(
        name=f"SIGINT at '{stage}'",
        command="eagle-export",
        arrange=into_parent,
        drive=lambda child, scene: send(child, scene, stage, signal.SIGINT),
        says="interrupted" if stage != "write" else "",
        also=(0,) if stage == "write" else (),
        check=check,
        terminal=True,
    )


def killed(stage: str) -> Fault:
    """Return a kill. It leaves no artifact or a whole one; the next export succeeds and leaves
    nothing but its own."""
    children: list[Child] = []

    def drive(child: Child, scene: Scene) -> None:
        children.append(child)
        send(child, scene, stage, signal.SIGKILL)

    def check(scene: Scene, output: str) -> str | None:
        late = had_ended(scene, stage)  # the export that comes after makes an artifact
        return in_time(what_is_left(scene), late)

    def what_is_left(scene: Scene) -> str | None:
        if (parent(scene) / "out").exists():
            return whole_artifact(scene)
        if stage not in WRITING:
            return nothing_in_parent(scene)
        again = export_again(children[0])
        return again.stderr if again.returncode else whole_artifact(scene)

    return Fault(
        name=f"SIGKILL at '{stage}'",
        command="eagle-export",
        arrange=into_parent,
        drive=drive,
        code=-signal.SIGKILL,
        also=(0,) if stage == "write" else (),
        check=check,
        terminal=True,
    )


def had_ended(scene: Scene, stage: str) -> bool:
    """Return whether a stage was over when the signal came: then the terminal shows what it cost.

    What follows the last stage, the tokenizer and the manifest, is writing as well.
    """
    if stage == "write":
        return (parent(scene) / "out").exists()
    text = ESCAPES.sub("", scene.transcript.read_text(errors="replace"))
    return re.search(rf"{stage} +\d+\.\d s ", text) is not None


def in_time(problem: str | None, late: bool) -> str | None:
    """Return the problem. Skips where there is none, but the signal came too late."""
    if late and problem is None:
        pytest.skip("the stage had ended when the signal came")
    return problem


def send(child: Child, scene: Scene, stage: str, number: signal.Signals) -> None:
    """Signal an export once its terminal shows a stage."""
    while child.poll() is None and stage.encode() not in scene.transcript.read_bytes():
        time.sleep(POLL)
    time.sleep(STAGES[stage])
    os.kill(child.pid, number)
