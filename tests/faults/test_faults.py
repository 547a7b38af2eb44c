"""The table of faults finds what is wrong with a command, and nothing where nothing is."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.artifact import WEIGHTS
from faults import table
from faults.fault import CannotMake, Fault
from faults.scene import SMALL, Scene
from faults.table import all_faults
from faults.trial import Row, try_fault

PYTHON = Path(sys.executable).name
REFUSED = "import sys; print('Error: no', file=sys.stderr); sys.exit(1)"
CHEAP = (
    "model.pte: bit flipped at 50%",
    "model.ptd: cut in half",
    "--verify: model.ptd bit flipped",
    "manifest.json: not UTF-8",
    "artifact: no such directory",
    "artifact: emptied as the command starts",
    "prompts: 100,000 brackets deep",
)
"""Rows whose commands are refused before they load a program."""


def python(body: str, **changes: Any) -> Fault:
    """A fault whose command is a few lines of Python."""
    fields = {"name": "synthetic", "command": PYTHON, "arrange": lambda scene: ["-c", body]}
    return Fault(**fields | {"says": "no"} | changes)


def tried(fault: Fault) -> Row:
    """What became of it; there is no artifact."""
    return try_fault(fault, Path("none"))


@pytest.mark.parametrize("name", CHEAP)
def test_a_real_command_refuses(name: str, tiny_artifact: Path) -> None:
    (fault,) = (fault for fault in all_faults() if fault.name == name)
    row = try_fault(fault, tiny_artifact.resolve())
    assert (row.wrong, row.skipped, row.left) == ((), "", ())
    assert row.line.startswith("Error: ") and row.code == 1


def test_faults_do_not_touch_the_artifact_that_they_copy(tmp_path: Path) -> None:
    good = Path(shutil.copytree(SMALL / "artifact", tmp_path / "good"))
    before = {path.name: path.read_bytes() for path in good.iterdir()}
    made = 0
    for place, fault in enumerate(all_faults()):
        if fault.name.startswith((*before, WEIGHTS, "--verify")):
            scene = Scene(tmp_path / str(place), good)
            scene.directory.mkdir()
            with suppress(CannotMake):
                fault.arrange(scene)
                made += 1
    assert made > 40
    assert {path.name: path.read_bytes() for path in good.iterdir()} == before


def test_rows_have_names_of_their_own() -> None:
    names = [fault.name for fault in all_faults()]
    assert len(names) == len(set(names)) > 160


def test_nothing_is_wrong_with_a_stated_failure() -> None:
    row = tried(python(REFUSED))
    assert (row.wrong, row.code, row.line, row.left) == ((), 1, "Error: no", ())


STDERR = "import sys; print({!r}, file=sys.stderr); sys.exit({})"


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("raise ValueError('Error: no')", "a traceback"),
        (STDERR.format("Error: no\nand more", 1), "2 lines on stderr"),
        (STDERR.format("Error: no", 2), "exit code 2, not 1"),
        (STDERR.format("Error: no", 0), "exit code 0, not 1"),
        (STDERR.format("Error: yes", 1), "does not say 'no'"),
        (STDERR.format("no", 1), "no stated failure"),
        ("import os; os.abort()", "exit code -6, not 1"),
        (f"open('left', 'w'); {REFUSED}", "left behind: left"),
        (f"open('.hidden', 'w'); {REFUSED}", "left behind: .hidden"),
        (f"import tempfile; tempfile.mkstemp('-left'); {REFUSED}", "-left"),
        (f"import os; os.mkdir('out'); {REFUSED}", "an output directory appeared"),
    ],
)
@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_wrong_is_found(body: str, wrong: str, terminal: bool) -> None:
    if terminal and wrong == "no stated failure":
        wrong = "does not say 'no'"  # on a terminal only what follows `Error: ` is the failure
    assert any(wrong in problem for problem in tried(python(body, terminal=terminal)).wrong)


def endless(child: "subprocess.Popen[bytes]", scene: Scene) -> None:
    while child.poll() is None:
        time.sleep(0.01)


@pytest.mark.parametrize("drive", [endless, lambda child, scene: None])
def test_a_hang_is_wrong_and_ends(drive: Callable[..., None]) -> None:
    began = time.monotonic()
    row = tried(python("import time; time.sleep(60)", seconds=0.5, drive=drive))
    assert row.wrong == ("no end after 0 s",) and row.code is None
    assert time.monotonic() - began < 20


def test_a_child_dies_with_its_driver() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def fail(child: "subprocess.Popen[bytes]", scene: Scene) -> None:
        children.append(child)
        raise CannotMake("not here")

    assert tried(python("import time; time.sleep(60)", drive=fail)).skipped == "not here"
    assert children[0].returncode == -signal.SIGKILL


def test_a_check_of_the_output_is_asked() -> None:
    row = tried(python("print(17)", says="", code=0, check=lambda scene, text: f"says {text!r}"))
    assert row.wrong == ("says '17\\n'",)


def test_a_row_that_is_wrong_fails_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [python(REFUSED, name="right"), python("raise ValueError", name="wrong")]
    monkeypatch.setattr(table, "all_faults", lambda: iter(rows))
    run = CliRunner().invoke
    arguments = [str(tmp_path), "--json", "--only"]
    assert run(table.main, [*arguments, "right"]).exit_code == 0
    result = run(table.main, [*arguments, "*"])
    assert result.exit_code == 1
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [bool(row["wrong"]) for row in found] == [False, True]
    assert "1 wrong, 1 tracebacks" in run(table.main, [str(tmp_path)]).stdout
    none = run(table.main, [*arguments, "neither"])
    assert none.exit_code == 1 and "fits no row" in none.stderr
