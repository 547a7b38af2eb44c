"""What is told of a server under many clients."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from check_server import Found, Memory, main, show
from eagle_aot.lab.checks.server import replicas
from eagle_aot.lab.checks.server.replicas import Killer, resident_of
from eagle_aot.lab.checks.server.tally import Tally, percentiles


def test_percentiles_are_of_all() -> None:
    found = percentiles([float(i) for i in range(1, 200)])
    expected = {"median": 100.0, "95 %": 190.0, "99 %": 198.0, "most": 199.0}
    assert found == pytest.approx(expected)
    assert percentiles([1.0]) == {}


@pytest.mark.parametrize("as_json", [True, False])
def test_what_went_wrong_is_shown(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(first=[0.5, 1.0], whole=[1.0, 2.0], tokens=120)
    for how, problem in (("as alone", ""), ("as alone", ""), ("differs", "'a': 'b', not 'c'")):
        tally.note(how, problem)
    memory = Memory(10**6), Memory(2 * 10**6, [4 * 10**6]), Memory(3 * 10**6)
    found = Found(seconds=60.0, tally=tally, memory=memory, killed=7)
    show(Path("tiny"), found, "1234567", as_json)
    told = capsys.readouterr().out
    if as_json:
        read = json.loads(told)
        assert read["requests"] == {"as alone": 2, "differs": 1} and read["killed"] == 7
        assert read["tokens_per_second"] == 2.0
        assert read["memory"]["early"] == {"server": 2 * 10**6, "replicas": [4 * 10**6]}
    else:
        assert "2 as alone, 1 differs" in told and "memory, MB: 1, 2 + 4, 3" in told
        assert "7 replicas killed" in told
    assert "'a': 'b', not 'c'" in told


def test_only_replicas_can_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("check_server.replicas", list)
    asked = [str(tmp_path), str(tmp_path / "prompts.jsonl"), "--kill-every", "5"]
    told = CliRunner().invoke(main, asked)
    assert told.exit_code == 1 and "--kill-every: no replicas on this machine" in told.stderr


def test_the_oldest_replica_is_killed_and_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that call themselves replicas, of which nobody replaces the first."""
    name = replicas.NAME.decode()
    sleeping = [
        subprocess.Popen([sys.executable, "-c", "input()", name], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    monkeypatch.setattr(replicas, "REPLACED_WITHIN", 0.1)
    try:
        first, second = sleeping
        while len(replicas.replicas()) < 2:  # a process that just began has no name yet
            time.sleep(0.01)
        killer = Killer(0.05)
        killer.kill_until(time.monotonic() + 0.08)
        assert first.wait(5) == -signal.SIGKILL and second.poll() is None
        assert killer.killed == 1 and not killer.all_replaced()
        assert resident_of(second.pid) > 10**6 and resident_of(first.pid) == 0
    finally:
        for process in sleeping:
            process.kill()
            process.communicate()
