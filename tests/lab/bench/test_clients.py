"""`eagle-bench --part clients`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.lab.bench.clients import main
from support.refusals import refuses

pytestmark = pytest.mark.artifact
SHORT = ("--prompt-tokens", "20", "--max-new-tokens", "6")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_more_clients_than_sequences_wait(batch_artifact: Path) -> None:
    done = run(batch_artifact, "--clients", "1,9", *SHORT, "--json")
    assert done.exit_code == 0, done.output
    one, many = json.loads(done.stdout)["lines"]
    assert (one["clients"], one["most_running"]) == (1, 1)
    assert many["clients"] == 9 and 1 < many["most_running"] < 9
    for line in (one, many):
        assert line["preemptions"] == 0
        assert 0 < line["first_token_s"] <= line["last_first_token_s"]
        assert line["between_ms"] > 0 and line["full_tokens_per_second"] > 0
        seconds = line["clients"] * 6 / line["tokens_per_second"]
        assert line["last_first_token_s"] < seconds


def test_a_table_for_a_reader(batch_artifact: Path) -> None:
    done = run(
        batch_artifact, "--clients", "2", *SHORT, "--chain-len", "2", "--prompt-share", "0.9"
    )
    assert done.exit_code == 0, done.output
    assert "20 tokens in, 6 out, K = 2" in done.stdout


def test_lengths_beyond_the_artifact_are_refused(batch_artifact: Path) -> None:
    refuses(run(batch_artifact, "--prompt-tokens", "100000"), "this artifact takes")
    refuses(run(batch_artifact, "--chain-len", "16", *SHORT), "--chain-len 16: this artifact takes")
