"""The order in which the command prints and draws, with made-up results."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.lab.bench import rounds
from eagle_aot.lab.bench.cli import main
from eagle_aot.lab.bench.results import Results
from eagle_aot.runtime_runner import load
from support.refusals import refuses
from support.runner.made_up_results import made_up_results


class MadeUpBench:
    """Measures nothing."""

    def __init__(self, *_: object) -> None: ...

    def run(self) -> Results:
        return made_up_results()


def disk_full(results: Results, path: Path) -> None:
    raise OSError(28, "No space left on device", str(path))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The artifacts that were loaded, on a disk that fills up before the picture is drawn."""
    loaded: list[Any] = []
    monkeypatch.setattr(load, "load_artifact", lambda path, *_, **__: loaded.append(path))
    monkeypatch.setattr(rounds, "Bench", MadeUpBench)
    monkeypatch.setattr(rounds, "plot_rounds", disk_full)
    return loaded


@pytest.mark.parametrize("as_json", [True, False])
def test_results_are_printed_before_the_picture_is_drawn(
    tmp_path: Path, loads: list[Any], as_json: bool
) -> None:
    picture = tmp_path / "round.png"
    arguments = ["artifact", "--plot", str(picture), *(["--json"] if as_json else [])]
    result = CliRunner().invoke(main, arguments)
    assert loads == [Path("artifact")]
    assert (result.exit_code, result.stderr) == (1, f"Error: {picture}: No space left on device\n")
    if as_json:
        assert json.loads(result.stdout)["contexts"][0]["rounds"][1]["launch_ms"] == 2.0
    else:
        assert "K = 2" in result.stdout and "launch" in result.stdout


def test_a_picture_that_cannot_be_written_is_refused_before_measuring(
    tmp_path: Path, loads: list[Any]
) -> None:
    picture = tmp_path / "directory.png"
    picture.mkdir()
    result = CliRunner().invoke(main, ["artifact", "--plot", str(picture)])
    refuses(result, f"--plot {picture}: cannot be written: Is a directory")
    assert not loads
