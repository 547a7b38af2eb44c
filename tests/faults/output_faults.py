"""Places where an artifact cannot appear, or where the disk gives up on the way."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from eagle_aot.artifact import Manifest
from faults.fault import Arguments, CannotMake, Fault
from faults.scene import Scene, write

TINY = ("--target-model", "gemma4-tiny", "--backend", "xnnpack")
SMALL_DISK, LARGER_DISK = "size=16m", "size=64m"  # the shipped pair's artifact takes 31 MB
LARGEST_FILE = 100_000  # bytes, less than its program
CHUNK = bytes(2**20)
POLL = 0.02  # s


def output_faults() -> Iterator[Fault]:
    """All of them."""
    yield from refused_places()
    yield from full_disks()
    yield from vanishing_places()
    yield two_at_once()


def into(
    name: str, place: Callable[[Scene], Path], says: str, after: Callable[[Scene], object] | None
) -> Fault:
    """The shipped pair, to a place that must be refused before anything is loaded."""
    return Fault(
        name=f"--output-dir: {name}",
        command="eagle-export",
        arrange=lambda scene: [*TINY, "--output-dir", place(scene)],
        says=says,
        after=after or (lambda scene: None),
    )


def refused_places() -> Iterator[Fault]:
    """Places that are found out at once."""
    yield into(
        "holds other files", _thesis, "holds other files (chapter.tex): choose another", None
    )
    yield into("a file", lambda s: write(s.directory / "file", b""), "is not a directory", None)
    yield into("below a file", lambda s: write(s.directory / "f", b"") / "a", "Not a dir", None)
    yield into("a name of 300 characters", lambda s: s.directory / (300 * "x"), "too long", None)
    yield into("a mount point", lambda s: Path("/proc"), "a mount point cannot be repl", None)
    yield into("in /proc", lambda s: Path("/proc/artifact"), "cannot be written", None)
    yield into("in a directory that cannot be changed", _frozen, "cannot be written", _thaw)


def exporting(scene: Scene, place: Path) -> Arguments:
    """The shipped pair, in a context that makes its export quick."""
    return [*TINY, "--max-seq-len", "128", "--output-dir", place]


def full_disks() -> Iterator[Fault]:
    """Disks that have no room for the program."""
    yield Fault(
        name="disk: no room for the weights",
        command="eagle-export",
        arrange=lambda scene: exporting(scene, _disk(scene, SMALL_DISK) / "out"),
        says="free on its disk: choose another",
        check=lambda scene, output: nothing_in(scene.directory / "disk"),
        after=_unmount,
    )
    yield Fault(
        name="disk: full while the artifact is written",
        command="eagle-export",
        arrange=lambda scene: exporting(scene, _disk(scene, LARGER_DISK) / "out"),
        drive=_fill_disk,
        says="No space left on device",
        check=lambda scene, output: nothing_in(scene.directory / "disk"),
        after=_unmount,
    )
    yield Fault(
        name="disk: refuses files beyond a size",
        command="eagle-export",
        arrange=lambda scene: exporting(scene, scene.directory / "out"),
        says="File too large",
        file_size=LARGEST_FILE,
    )


def vanishing_places() -> Iterator[Fault]:
    """Directories that somebody removes while the export runs."""
    yield Fault(
        name="--output-dir: the unfinished artifact is removed on the way",
        command="eagle-export",
        arrange=lambda scene: exporting(scene, new_place(scene) / "out"),
        drive=lambda child, scene: shutil.rmtree(await_partial(child, scene.directory / "place")),
        says="cannot be written",
        check=lambda scene, output: nothing_in(scene.directory / "place"),
    )
    yield Fault(
        name="--output-dir: its parent is removed on the way",
        command="eagle-export",
        arrange=lambda scene: exporting(scene, new_place(scene) / "out"),
        drive=_remove_parent,
        says="cannot be written",
    )


def two_at_once() -> Fault:
    """Both may finish; the artifact is that of one of them, whole."""

    def arrange(scene: Scene) -> Arguments:
        return exporting(scene, new_place(scene) / "out")

    def second(child: "subprocess.Popen[bytes]", scene: Scene) -> None:
        assert isinstance(child.args, list)
        other = subprocess.run(child.args, cwd=scene.directory, capture_output=True, check=False)
        write(scene.directory.parent / "second.json", json.dumps([other.returncode]).encode())

    def check(scene: Scene, output: str) -> str | None:
        note = scene.directory.parent / "second.json"
        (code,) = json.loads(note.read_bytes())
        note.unlink()
        return f"the second ended with {code}" if code else whole(scene.directory / "place")

    return Fault(
        name="--output-dir: two exports at the same time",
        command="eagle-export",
        arrange=arrange,
        drive=second,
        check=check,
        code=0,
    )


def whole(place: Path) -> str | None:
    """What is wrong unless `place` holds one artifact, `out`, with all of its files, and no more.

    A complete artifact is one that the runner opens.
    """
    if names := sorted(path.name for path in place.iterdir() if path.name != "out"):
        return f"left in {place.name}: {', '.join(names)}"
    manifest = Manifest.read(place / "out")
    manifest.verify(place / "out")
    return None


def await_partial(child: "subprocess.Popen[bytes]", place: Path) -> Path:
    """The hidden directory that an export writes into, once it is there."""
    while child.poll() is None:
        if found := list(place.glob(".out.partial-*")):
            time.sleep(1.0)  # the check of the place makes one for a moment
            if found[0].exists():
                return found[0]
        time.sleep(POLL)
    raise CannotMake("the export ended before it wrote anything")


def new_place(scene: Scene) -> Path:
    """An empty directory to export into a part of."""
    place = scene.directory / "place"
    place.mkdir()
    return place


def nothing_in(place: Path) -> str | None:
    """What is wrong unless `place` is empty."""
    names = sorted(path.name for path in place.iterdir())
    return f"left in {place.name}: {', '.join(names)}" if names else None


def _remove_parent(child: "subprocess.Popen[bytes]", scene: Scene) -> None:
    await_partial(child, scene.directory / "place")
    shutil.rmtree(scene.directory / "place")


def _thesis(scene: Scene) -> Path:
    (scene.directory / "thesis").mkdir()
    write(scene.directory / "thesis" / "chapter.tex", b"years of work")
    return scene.directory / "thesis"


def _frozen(scene: Scene) -> Path:
    """Even the superuser may write nothing here."""
    place = new_place(scene)
    os.chmod(place, 0o555)
    if os.geteuid() == 0 and not _done("chattr", "+i", str(place)):
        raise CannotMake("chattr +i does not work here")
    return place / "out"


def _thaw(scene: Scene) -> None:
    _done("chattr", "-i", str(scene.directory / "place"))
    os.chmod(scene.directory / "place", 0o755)


def _disk(scene: Scene, size: str) -> Path:
    disk = scene.directory / "disk"
    disk.mkdir()
    if not _done("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk)):
        raise CannotMake("no disk can be mounted here")
    return disk


def _fill_disk(child: "subprocess.Popen[bytes]", scene: Scene) -> None:
    """For as long as the export runs that has begun to write."""
    disk = scene.directory / "disk"
    await_partial(child, disk)
    with suppress(OSError), (disk / "others").open("wb", buffering=0) as file:
        while file.write(CHUNK):
            pass
    child.wait()
    (disk / "others").unlink()


def _unmount(scene: Scene) -> None:
    _done("umount", str(scene.directory / "disk"))


def _done(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
