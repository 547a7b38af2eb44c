"""`eagle-bench --part prompt-share`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_aot.lab.bench.prompt_share import intervals_of, main


def test_intervals_between_tokens_include_prompt_chunks() -> None:
    steps = [(10.0, {1, 2}), (5.0, set[int]()), (10.0, {1}), (4.0, {7}), (1.0, {2, 7})]
    assert list(intervals_of(steps, {1, 2})) == [10.0, 15.0, 5.0]


@pytest.mark.artifact
def test_every_number_of_requests_has_a_line(batch_artifact: Path) -> None:
    chosen = ["--batch-sizes", "1,2", "--prompt", "150", "--chain-len", "2"]
    done = CliRunner().invoke(main, [str(batch_artifact), *chosen, "--json"])
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)["lines"]
    assert [line["batch_size"] for line in lines] == [1, 2]
    for line in lines:
        assert line["longest_ms"] >= line["mean_ms"] >= line["alone_ms"] > 0
        assert line["prompt_ms"] > 0 and line["prompt_alone_ms"] > 0
    shown = CliRunner().invoke(main, [str(batch_artifact), *chosen])
    assert shown.exit_code == 0 and "in parallel, mean" in shown.stdout
    refused = CliRunner().invoke(main, [str(batch_artifact), "--prompt", "100000"])
    assert refused.exit_code == 1
