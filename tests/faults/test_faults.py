"""Commands meet faults of the machine around them: each ends with one line and leaves nothing.

Damaged files are tested with their readers. With FAULTS=all every fault is made, which takes an
hour; otherwise those whose commands are refused before they load a program.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.exports import export_faults
from faults.runs import run_faults
from faults.trial import Child, Fault, Scene, problems

PYTHON = Path(sys.executable).name
REFUSED = "import sys; print('Error: no', file=sys.stderr); sys.exit(1)"
STDERR = "import sys; print({!r}, file=sys.stderr); sys.exit({})"
QUICK = ("artifact: missing", "artifact: emptied", "memory: caches")


def made(faults: Iterator[Fault]) -> list[Fault]:
    every = os.environ.get("FAULTS") == "all"
    return [fault for fault in faults if every or fault.name.startswith(QUICK)]


@pytest.mark.parametrize("fault", made(run_faults()), ids=lambda fault: fault.name)
def test_eagle_run_states_its_failure(fault: Fault, tiny_artifact: Path, tmp_path: Path) -> None:
    assert problems(fault, tiny_artifact.resolve(), tmp_path) == []


@pytest.mark.parametrize("fault", made(export_faults()), ids=lambda fault: fault.name)
def test_eagle_export_states_its_failure(fault: Fault, tmp_path: Path) -> None:
    assert problems(fault, Path("none"), tmp_path) == []


def python(body: str, **changes: Any) -> Fault:
    """Return a fault whose command is a few lines of Python."""
    fields: dict[str, Any] = {"name": "synthetic", "command": PYTHON, "says": "no"}
    return Fault(arrange=lambda scene: ["-c", body], **fields | changes)


def test_a_stated_failure_has_no_problem(tmp_path: Path) -> None:
    assert problems(python(REFUSED), Path("none"), tmp_path) == []


@pytest.mark.parametrize(("body", "wrong"), [
    ("raise ValueError('Error: no')", "a traceback"),
    (STDERR.format("Error: no\nand more", 1), "2 lines on stderr"),
    (STDERR.format("Error: no", 2), "exit code 2, not 1"),
    (STDERR.format("Error: no", 0), "exit code 0, not 1"),
    (STDERR.format("Error: yes", 1), "does not say 'no'"),
    (STDERR.format("no", 1), "no stated failure"),
    ("import os; os.abort()", "exit code -6, not 1"),
    (f"open('left', 'w'); {REFUSED}", "not removed: left"),
    (f"open('.hidden', 'w'); {REFUSED}", "not removed: .hidden"),
    (f"import tempfile; tempfile.mkstemp('-left'); {REFUSED}", "-left"),
    (f"import os; os.mkdir('out'); {REFUSED}", "an output directory appeared"),
])  # fmt: skip
@pytest.mark.parametrize("terminal", [False, True])
def test_a_problem_is_found(body: str, wrong: str, terminal: bool, tmp_path: Path) -> None:
    if terminal and wrong == "no stated failure":
        wrong = "does not say 'no'"  # on a terminal only what follows `Error: ` is the failure
    found = problems(python(body, terminal=terminal), Path("none"), tmp_path)
    assert any(wrong in problem for problem in found)


def test_a_wrong_output_is_a_problem(tmp_path: Path) -> None:
    fault = python("print(17)", says="", code=0, check=lambda scene, text: f"says {text!r}")
    assert problems(fault, Path("none"), tmp_path) == ["says '17\\n'"]


def wait_for_end(child: Child, scene: Scene) -> None:
    while child.poll() is None:
        time.sleep(0.01)


@pytest.mark.parametrize("drive", [wait_for_end, lambda child, scene: None])
def test_a_hang_is_a_problem_and_ends(drive: Callable[..., None], tmp_path: Path) -> None:
    began = time.monotonic()
    fault = python("import time; time.sleep(60)", seconds=0.5, drive=drive)
    assert problems(fault, Path("none"), tmp_path) == ["no end after 0 s"]
    assert time.monotonic() - began < 20


def test_a_child_dies_with_its_driver(tmp_path: Path) -> None:
    children: list[Child] = []

    def fail(child: Child, scene: Scene) -> None:
        children.append(child)
        raise KeyError

    with pytest.raises(KeyError):
        problems(python("import time; time.sleep(60)", drive=fail), Path("none"), tmp_path)
    assert children[0].returncode == -signal.SIGKILL
