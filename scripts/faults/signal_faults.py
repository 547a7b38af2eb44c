"""Exports that are interrupted or killed, at every stage; and what the next one finds."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from faults.fault import TRANSCRIPT, Fault
from faults.output_faults import exporting, new_place, nothing_in, whole
from faults.scene import Scene

STAGES = ("load", "trace", "check graphs", "import the compiler", "lower", "write")
WRITING = ("lower", "write")
"""Those in which an unfinished artifact lies on the disk."""
SOON = 0.2  # s into a stage; one that takes less has ended by then
POLL = 0.01  # s


def signal_faults() -> Iterator[Fault]:
    """Both signals, at every stage."""
    for stage in STAGES:
        yield interrupted(stage)
        yield killed(stage)
    yield Fault(
        name="SIGINT: eagle-run while it loads",
        arrange=lambda scene: [scene.good, "--prompt", "Tom", "--json"],
        drive=lambda child, scene: (time.sleep(1.5), child.send_signal(signal.SIGINT)),
        says="interrupted",
    )


def interrupted(stage: str) -> Fault:
    """Nothing may be left. An export that was done before the signal came has ended well."""

    def check(scene: Scene, output: str) -> str | None:
        place = scene.directory / "place"
        return whole(place) if (place / "out").exists() else nothing_in(place)

    return Fault(
        name=f"SIGINT: eagle-export while it is at '{stage}'",
        command="eagle-export",
        arrange=lambda scene: exporting(scene, new_place(scene) / "out"),
        drive=lambda child, scene: send(child, scene, stage, signal.SIGINT),
        says="interrupted" if stage != "write" else "",
        also=(0,) if stage == "write" else (),
        check=check,
        terminal=True,
    )


def killed(stage: str) -> Fault:
    """No artifact or a whole one; the next export succeeds and leaves nothing but its own."""

    def check(scene: Scene, output: str) -> str | None:
        place = scene.directory / "place"
        if (place / "out").exists():
            return whole(place)
        if stage not in WRITING:
            return nothing_in(place)
        command = (scene.directory.parent / "command").read_text().split("\n")
        (scene.directory.parent / "command").unlink()
        again = subprocess.run(command, capture_output=True, check=False, text=True)
        return again.stderr if again.returncode else whole(place)

    return Fault(
        name=f"SIGKILL: eagle-export while it is at '{stage}'",
        command="eagle-export",
        arrange=lambda scene: exporting(scene, new_place(scene) / "out"),
        drive=lambda child, scene: send(child, scene, stage, signal.SIGKILL),
        code=-signal.SIGKILL,
        also=(0,) if stage == "write" else (),
        check=check,
        terminal=True,
    )


def send(
    child: "subprocess.Popen[bytes]", scene: Scene, stage: str, number: signal.Signals
) -> None:
    """Signal an export once its terminal shows a stage."""
    transcript = scene.directory.parent / TRANSCRIPT
    while child.poll() is None and stage not in transcript.read_text(errors="replace"):
        time.sleep(POLL)
    time.sleep(0 if stage == "write" else SOON)
    if number == signal.SIGKILL and stage in WRITING:
        remember(child, scene)
    child.send_signal(number)


def remember(child: "subprocess.Popen[bytes]", scene: Scene) -> None:
    """The command, for the export that comes after."""
    assert isinstance(child.args, list)
    Path(scene.directory.parent / "command").write_text("\n".join(map(str, child.args)))
