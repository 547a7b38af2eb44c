"""One fault: how it is made, and what the command must answer."""

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.scene import Scene

Arguments = Sequence[str | Path]


TRANSCRIPT = "stderr"
"""Where a command's stderr goes, beside its scene, while it runs."""


class CannotMake(Exception):
    """This machine does not let us make the fault; the row says why and counts for nothing."""


def leave_alone(child: "subprocess.Popen[bytes]", scene: Scene) -> None:
    """Let the command end by itself."""


def undo_nothing(scene: Scene) -> None:
    """Nothing was mounted or locked."""


def accept(scene: Scene, output: str) -> str | None:
    """Any output will do."""
    return None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of the table.

    `arrange` makes the fault in a scene and returns the command's arguments. `code` is the exit
    code it must end with, `also` others that are right where it may have ended before `drive`
    acted on it; `says` is what its one line holds (nothing where that is empty), of
    several one. `check` looks at stdout and at what was written, and returns what is wrong with it;
    `after` undoes what a scene is not removed with. With `terminal` stderr is one. `address_space`
    and `file_size` are limits in bytes.
    """

    name: str
    arrange: Callable[[Scene], Arguments]
    says: str | tuple[str, ...] = ""
    command: str = "eagle-run"
    code: int = 1
    check: Callable[[Scene, str], str | None] = accept
    drive: Callable[["subprocess.Popen[bytes]", Scene], object] = leave_alone
    after: Callable[[Scene], object] = undo_nothing
    also: tuple[int, ...] = ()
    terminal: bool = False
    stdout: str | None = None
    address_space: int | None = None
    file_size: int | None = None
    seconds: float = 600.0

    def limit(self) -> None:
        """Runs in the child before the command."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell's ignores it
        if self.address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.address_space, self.address_space))
        if self.file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_size, self.file_size))
        if self.stdout == "closed":
            os.close(1)
