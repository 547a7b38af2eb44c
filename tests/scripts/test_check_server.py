"""What is told of a server under many clients."""

import json
from pathlib import Path

import pytest

from check_server import Tally, percentiles, show


def test_percentiles_are_of_all() -> None:
    found = percentiles([float(i) for i in range(1, 200)])
    assert found == pytest.approx({"median": 100.0, "95 %": 190.0, "99 %": 198.0})
    assert percentiles([1.0]) == {}


@pytest.mark.parametrize("as_json", [True, False])
def test_what_went_wrong_is_shown(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(first=[0.5, 1.0], whole=[1.0, 2.0], tokens=120, problems=["'a': 'b', not 'c'"])
    tally.ends.update({"as alone": 3, "differs": 1})
    show(Path("tiny"), tally, (10**6, 2 * 10**6, 3 * 10**6), 60.0, "1234567", as_json)
    told = capsys.readouterr().out
    if as_json:
        found = json.loads(told)
        assert found["requests"] == {"as alone": 3, "differs": 1}
        assert found["tokens_per_second"] == 2.0 and found["memory"]["late"] == 3 * 10**6
    else:
        assert "3 as alone, 1 differs" in told and "memory, MB: 1, 2, 3" in told
    assert "'a': 'b', not 'c'" in told
