"""`eagle-bench --part clients`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eagle_aot.lab.bench.clients import ClientsSpec, main
from support.refusals import refuses
from support.runner.logging_executor import CONSTANTS

pytestmark = pytest.mark.artifact
SHORT = ("--prompt-tokens", "20", "--max-new-tokens", "6")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize(("limit", "expected"), [(4096, 1024), (1024, 512)])
def test_default_prompts_leave_half_of_the_context(limit: int, expected: int) -> None:
    fitted = ClientsSpec(artifact=Path()).fitted(replace(CONSTANTS, max_seq_len=limit))
    assert fitted.prompt_tokens == expected


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


def test_drafts_give_as_many_tokens_as_required(batch_artifact: Path) -> None:
    """Of more clients than sequences, whose texts are those of plain decoding."""
    lengths = "--prompt-tokens", "20", "--max-new-tokens", "64"
    drafts = "--chain-len", "3", "--tau", "1,2.5,4"
    done = run(batch_artifact, "--clients", "1,6", *lengths, *drafts, "--json")
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)["lines"]
    assert [(line["clients"], line["chain_len"]) for line in lines] == [
        (clients, k) for clients in (1, 6) for k in (0, 3, 3, 3)
    ]
    for line, tau in zip(lines, 2 * (1, 1, 2.5, 4), strict=True):
        assert line["tau"] == pytest.approx(tau, rel=0.06)


def test_a_table_for_a_reader(batch_artifact: Path) -> None:
    done = run(
        batch_artifact, "--clients", "2", *SHORT, "--chain-len", "2", "--prompt-share", "0.9"
    )
    assert done.exit_code == 0, done.output
    assert "20 tokens in, 6 out" in done.stdout
    clients, chain_len = done.stdout.splitlines()[-2].split("│")[1:3]
    assert (clients.strip(), chain_len.strip()) == ("2", "2")


def test_numbers_out_of_range_are_refused(batch_artifact: Path) -> None:
    refuses(run(batch_artifact, "--prompt-tokens", "100000"), "this artifact takes")
    refuses(run(batch_artifact, "--chain-len", "16", *SHORT), "--chain-len 16: this artifact takes")
    refuses(run("none", "--clients", "2,0"), "--clients 0: must be at least 1")
    drafts = "none", "--chain-len", "2", "--tau"
    refuses(run(*drafts, "3.5"), "a round of --chain-len 2 gives 3 at most")
    refuses(run(*drafts, "0.5"), "a round emits at least 1 token")
