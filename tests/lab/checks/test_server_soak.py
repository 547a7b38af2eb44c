"""The report of a server's soak."""

import json
from pathlib import Path

import pytest

from eagle_aot.lab.bench.server.measure import percentiles
from eagle_aot.lab.checks.server.clients import RequestCounts
from eagle_aot.lab.checks.server.soak import ServerSample, SoakResult, show


def test_percentiles_are_of_all_values() -> None:
    shares = percentiles([float(i) for i in range(1, 200)])
    expected = {"median": 100.0, "95 %": 190.0, "99 %": 198.0, "most": 199.0}
    assert shares == pytest.approx(expected)
    assert percentiles([]) == {} and set(percentiles([1.0]).values()) == {1.0}


def sample(memory: int = 10**9, **more: int) -> ServerSample:
    values = {"descriptors": 20, "threads": 9, "pending": 0, "waiting": 0} | more
    return ServerSample(memory=memory, **values)


@pytest.mark.parametrize(
    ("late", "leaks"),
    [
        (sample(), []),
        (sample(10**9 + 10**8), []),
        (sample(10**9 + 2 * 10**8), ["memory grew from 1,000 to 1,200 MB"]),
        (sample(descriptors=23), ["23 descriptors are open, 20 were before"]),
        (sample(threads=18), ["18 threads run, 9 did early"]),
        (sample(pending=1), ["1 requests have not ended"]),
    ],
)
def test_what_the_server_still_holds_is_a_problem(late: ServerSample, leaks: list[str]) -> None:
    samples = [sample(10**8), sample(), late]
    result = SoakResult(seconds=60.0, counts=RequestCounts(), samples=samples)
    assert list(result.leaks()) == leaks


@pytest.mark.parametrize("as_json", [True, False])
def test_problems_and_figures_are_shown(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    counts = RequestCounts(first=[0.5, 1.0], whole=[1.0, 2.0], tokens=120)
    for end, problem in (("as alone", ""), ("as alone", ""), ("differs", "'a': 'b', not 'c'")):
        counts.note(end, problem)
    result = SoakResult(seconds=60.0, counts=counts, samples=[sample(n * 10**6) for n in (1, 2, 3)])
    show(Path("tiny"), result, "1234567", as_json)
    output = capsys.readouterr().out
    if as_json:
        read = json.loads(output)
        assert read["requests"] == {"as alone": 2, "differs": 1}
        assert read["tokens_per_second"] == 2.0
        memory = {time: server["memory"] for time, server in read["server"].items()}
        assert memory == {"before": 10**6, "early": 2 * 10**6, "late": 3 * 10**6}
    else:
        assert (
            "2 as alone, 1 differs" in output
            and "memory: 1,000,000, 2,000,000, 3,000,000" in output
        )
    assert "'a': 'b', not 'c'" in output
