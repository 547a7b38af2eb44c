"""Exports that are interrupted or killed, at every stage; and what the next one finds."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from faults.fault import TRANSCRIPT, Arguments, CannotMake, Fault
from faults.output_faults import exporting, new_place, nothing_in, whole
from faults.scene import Scene
from faults.trial import ESCAPES

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
"""Those in which an unfinished artifact lies on the disk."""
POLL = 0.001  # s


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
        problem = whole(place) if (place / "out").exists() else nothing_in(place)
        return in_time(problem, had_ended(scene, stage))

    return Fault(
        name=f"SIGINT: eagle-export while it is at '{stage}'",
        command="eagle-export",
        arrange=lambda scene: arguments(scene),
        drive=lambda child, scene: send(child, scene, stage, signal.SIGINT),
        says="interrupted" if stage != "write" else "",
        also=(0,) if stage == "write" else (),
        check=check,
        terminal=True,
    )


def killed(stage: str) -> Fault:
    """No artifact or a whole one; the next export succeeds and leaves nothing but its own."""

    def check(scene: Scene, output: str) -> str | None:
        late = had_ended(scene, stage)  # the export that comes after makes an artifact
        return in_time(rest(scene, stage), late)

    return Fault(
        name=f"SIGKILL: eagle-export while it is at '{stage}'",
        command="eagle-export",
        arrange=lambda scene: arguments(scene),
        drive=lambda child, scene: send(child, scene, stage, signal.SIGKILL),
        code=-signal.SIGKILL,
        also=(0,) if stage == "write" else (),
        check=check,
        terminal=True,
    )


def arguments(scene: Scene) -> Arguments:
    """Return the arguments of an export of the shipped pair."""
    return exporting(scene, new_place(scene) / "out")


def rest(scene: Scene, stage: str) -> str | None:
    """What is wrong with what a killed export left, or with the export that comes after it."""
    place = scene.directory / "place"
    if (place / "out").exists():
        return whole(place)
    if stage not in WRITING:
        return nothing_in(place)
    command = (scene.directory.parent / "command").read_text().split("\n")
    again = subprocess.run(command, capture_output=True, check=False, text=True)
    return again.stderr if again.returncode else whole(place)


def had_ended(scene: Scene, stage: str) -> bool:
    """Whether a stage was over when the signal came: then the terminal shows what it cost.

    What follows the last stage, the tokenizer and the manifest, is writing as well.
    """
    if stage == "write":
        return (scene.directory / "place" / "out").exists()
    transcript = scene.directory.parent / TRANSCRIPT
    text = ESCAPES.sub("", transcript.read_text(errors="replace"))
    return re.search(rf"{stage} +\d+\.\d s ", text) is not None


def in_time(problem: str | None, late: bool) -> str | None:
    """The problem. Raises CannotMake where there is none, but the signal came too late."""
    if late and problem is None:
        raise CannotMake("the stage had ended when the signal came")
    return problem


def send(
    child: "subprocess.Popen[bytes]", scene: Scene, stage: str, number: signal.Signals
) -> None:
    """Signal an export once its terminal shows a stage."""
    if number == signal.SIGKILL and stage in WRITING:
        remember(child, scene)
    transcript = scene.directory.parent / TRANSCRIPT
    while child.poll() is None and stage.encode() not in transcript.read_bytes():
        time.sleep(POLL)
    time.sleep(STAGES[stage])
    child.send_signal(number)


def remember(child: "subprocess.Popen[bytes]", scene: Scene) -> None:
    """The command, for the export that comes after."""
    assert isinstance(child.args, list)
    Path(scene.directory.parent / "command").write_text("\n".join(map(str, child.args)))
