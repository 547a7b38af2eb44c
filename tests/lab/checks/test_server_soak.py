"""The report of a server's soak."""

import json
from pathlib import Path

import pytest

from eagle_aot.lab.bench.server.measure import percentiles
from eagle_aot.lab.checks.server.clients import RequestCounts
from eagle_aot.lab.checks.server.soak import SoakResult, show


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
    memory = 10**6, 2 * 10**6, 3 * 10**6
    result = SoakResult(seconds=60.0, counts=counts, memory=memory)
    show(Path("tiny"), result, "1234567", as_json)
    output = capsys.readouterr().out
    if as_json:
        read = json.loads(output)
        assert read["requests"] == {"as alone": 2, "differs": 1}
        assert read["tokens_per_second"] == 2.0
        assert read["memory"] == {"before": 10**6, "early": 2 * 10**6, "late": 3 * 10**6}
    else:
        assert "2 as alone, 1 differs" in output and "memory, MB: 1, 2, 3" in output
    assert "'a': 'b', not 'c'" in output
