"""What `eagle-serve` says before it listens."""

from pathlib import Path
from typing import Any

import pytest

from eagle_aot.runtime_runner.engine.warm_up import WarmUp
from eagle_aot.runtime_runner.serve.cli import load


class Opened:
    def adaptive_schedule(self, trees: bool) -> None:
        pass

    def warm_up(self) -> WarmUp:
        return WarmUp(rounds=3, recorded=3, seconds=0.1, bytes=None)


def test_what_warming_up_took_is_a_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def opened(artifact: Path, **options: Any) -> Opened:
        return Opened()

    monkeypatch.setattr("eagle_aot.runtime_runner.load.load_artifact", opened)
    given = {"executor": "auto", "drafter": None, "prompt_share": 0.5, "reuse": True}
    with caplog.at_level("INFO"):
        load(Path("artifact"), given | {"no_warm_up": False})
    assert caplog.messages == ["warm-up: 3 rounds in 0.1 s, 3 of them recorded"]
    assert capsys.readouterr().err == ""
