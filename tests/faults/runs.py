"""Faults around `eagle-run`: artifacts that vanish, too little memory, outputs that do not take an
answer."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import pytest

from eagle_aot.artifact import MANIFEST, PROGRAM, CacheBytes
from faults.trial import Arguments, Child, Drive, Fault, Scene

QUESTION = "Ada has 27 marbles. Marco has 6 times as many. How many marbles do they have together?"
ANSWER = "#### 189"
GIB = 2**30
POLL = 0.001  # s


def ask(artifact: Path) -> Arguments:
    """Return the arguments of one question."""
    return [artifact, "--prompt", QUESTION, "--json"]


def run_faults() -> Iterator[Fault]:
    """Yield all of them."""
    yield from vanishing_artifacts()
    yield from memory_limits()
    yield from unwilling_outputs()
    yield Fault(
        name="SIGINT while it loads",
        arrange=lambda scene: ask(scene.copy_artifact()),
        drive=once_in_use(opened, lambda child, scene: child.send_signal(signal.SIGINT)),
        says="interrupted",
    )


def vanishing_artifacts() -> Iterator[Fault]:
    """Yield artifacts that are missing, or removed at three moments: before the manifest is read,
    while the program is hashed, and once it is mapped, before the tokenizer is read."""
    yield Fault(
        name="artifact: missing",
        arrange=lambda scene: ask(scene.artifact),
        says="no such artifact directory",
    )
    moments: dict[str, tuple[Drive, str | tuple[str, ...]]] = {
        "emptied as the command starts": (empty, "not an artifact"),
        "removed while its files are hashed": (
            once_in_use(opened, remove),
            # What is missed first depends on the moment.
            ("not a readable ExecuTorch program", "No such file or directory"),
        ),
        "removed when its program has been mapped": (
            once_in_use(mapped, remove),
            "has no tokenizer",
        ),
    }
    for moment, (drive, says) in moments.items():
        yield Fault(
            name=f"artifact: {moment}",
            arrange=lambda scene: ask(scene.copy_artifact()),
            drive=drive,
            says=says,
        )


def empty(child: Child, scene: Scene) -> None:
    """Remove the artifact's files."""
    for path in scene.artifact.iterdir():
        path.unlink()


def remove(child: Child, scene: Scene) -> None:
    """Remove the artifact."""
    shutil.rmtree(scene.artifact)


def once_in_use(files: Callable[[int], Container[str]], act: Drive) -> Drive:
    """Return a driver that acts once the artifact's program is among the files of the process."""

    def drive(child: Child, scene: Scene) -> None:
        program = str(scene.artifact / PROGRAM)
        while child.poll() is None:
            if program in files(child.pid):
                act(child, scene)
                return
            time.sleep(POLL)
        pytest.skip("the program was not seen in use")

    return drive


def opened(process: int) -> list[str]:
    """Return what a process has open."""
    try:
        return [os.readlink(entry.path) for entry in os.scandir(f"/proc/{process}/fd")]
    except OSError:  # closed, or ended, since the directory was read
        return []


def mapped(process: int) -> str:
    """Return what a process has mapped, as the kernel prints it."""
    try:
        return Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return ""


def memory_limits() -> Iterator[Fault]:
    """Yield address spaces that PyTorch's libraries do not fit in, which abort a process that lets
    them; one that is large enough; and caches for which the host has no memory."""
    for limit in (0.25, 0.7, 1.0):
        yield Fault(
            name=f"memory: {limit:g} GiB of addresses",
            arrange=lambda scene: ask(scene.good),
            address_space=int(limit * GIB),
            says="out of memory on the host",
        )
    yield Fault(
        name="memory: 2 GiB of addresses, which are enough",
        arrange=lambda scene: ask(scene.good),
        address_space=2 * GIB,
        code=0,
        check=answers_right,
    )
    yield Fault(
        name="memory: caches that do not fit",
        arrange=lambda scene: ask(with_caches(scene, 64, 2**40)),
        says="caches of 64 sequences 65536.0 GiB",
    )


def with_caches(scene: Scene, sequences: int, size: int) -> Path:
    """Return an artifact that says it has caches of `size` bytes for each of its sequences."""
    manifest = scene.copy_artifact() / MANIFEST
    stored = json.loads(manifest.read_bytes())
    stored["decisions"]["caches"] = CacheBytes(
        bytes=sequences * size,
        bytes_of_a_sequence=size,
        target_bytes_of_a_sequence=size,
        draft_bytes_of_a_sequence=0,
    ).to_json()
    manifest.unlink()  # the good artifact's file stays
    manifest.write_text(json.dumps(stored))
    return manifest.parent


def unwilling_outputs() -> Iterator[Fault]:
    """Yield outputs that no process reads, that are full, or closed."""
    for stdout, says, code in (
        ("pipe without a reader", "", 1),
        ("/dev/full", "No space left on device", 1),
        ("closed", "", 0),
    ):
        yield Fault(
            name=f"stdout: {stdout}",
            arrange=lambda scene: ask(scene.good),
            stdout=stdout,
            says=says,
            code=code,
        )
    yield Fault(
        name="--plot in a missing directory",
        arrange=lambda scene: [*ask(scene.good), "--plot", scene.directory / "none" / "a.png"],
        says="none",
    )


def answers_right(scene: Scene, output: str) -> str | None:
    """Return what is wrong unless the output is the good artifact's answer."""
    lines = [json.loads(line) for line in output.splitlines()]
    if lines and ANSWER in lines[0]["text"]:
        return None
    return f"another answer: {output[:100]!r}"
