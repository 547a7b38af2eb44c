"""The soak of a server: what it reports, and killing replicas."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_aot.lab.bench.server.measure import percentiles
from eagle_aot.lab.checks.server import replicas
from eagle_aot.lab.checks.server.clients import RequestCounts
from eagle_aot.lab.checks.server.replicas import Killer, resident_bytes
from eagle_aot.lab.checks.server.soak import Memory, SoakResult, main, show


def test_percentiles_are_of_all_values() -> None:
    shares = percentiles([float(i) for i in range(1, 200)])
    expected = {"median": 100.0, "95 %": 190.0, "99 %": 198.0, "most": 199.0}
    assert shares == pytest.approx(expected)
    assert percentiles([]) == {} and set(percentiles([1.0]).values()) == {1.0}


@pytest.mark.parametrize("as_json", [True, False])
def test_problems_and_figures_are_shown(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    counts = RequestCounts(first=[0.5, 1.0], whole=[1.0, 2.0], tokens=120)
    for end, problem in (("as alone", ""), ("as alone", ""), ("differs", "'a': 'b', not 'c'")):
        counts.note(end, problem)
    memory = Memory(10**6), Memory(2 * 10**6, [4 * 10**6]), Memory(3 * 10**6)
    result = SoakResult(seconds=60.0, counts=counts, memory=memory, killed=7)
    show(Path("tiny"), result, "1234567", as_json)
    output = capsys.readouterr().out
    if as_json:
        read = json.loads(output)
        assert read["requests"] == {"as alone": 2, "differs": 1} and read["killed"] == 7
        assert read["tokens_per_second"] == 2.0
        assert read["memory"]["early"] == {"server": 2 * 10**6, "replicas": [4 * 10**6]}
    else:
        assert "2 as alone, 1 differs" in output and "memory, MB: 1, 2 + 4, 3" in output
        assert "7 replicas killed" in output
    assert "'a': 'b', not 'c'" in output


def test_only_replicas_can_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_aot.lab.checks.server.soak.replicas", list)
    arguments = [str(tmp_path), str(tmp_path / "prompts.jsonl"), "--kill-every", "5"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1 and "--kill-every: no replicas on this machine" in done.stderr


def test_the_oldest_replica_is_killed_and_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that call themselves replicas; the first is not replaced."""
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
        assert resident_bytes(second.pid) > 10**6 and resident_bytes(first.pid) == 0
    finally:
        for process in sleeping:
            process.kill()
            process.communicate()
