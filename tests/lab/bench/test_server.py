"""`eagle-bench --part server`."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rich.table import Table

from eagle_aot.artifact import TOKENIZER_FILES, Manifest
from eagle_aot.common.tokenizer import read_tokenizer
from eagle_aot.lab.bench.server.cli import KnownTexts, Load, main, tables
from eagle_aot.lab.bench.server.measure import (
    EngineTimes,
    ServerTimes,
    engine_times,
    waiting_times,
    wall_seconds,
)
from eagle_aot.lab.bench.server.processes import answer
from eagle_aot.lab.bench.server.words import random_prompts, with_words, words_of
from eagle_aot.runtime_runner import Runner
from support.server import Server

PROMPTS = ["Ada has 27 marbles. How many has she?", "Mei owns 7 oranges."]
GREEDY = {"max_new_tokens": 12, "temperature": 0.0, "speculate": True}


def test_clients_send_requests_of_their_own() -> None:
    load = Load(prompts=["a", "b", "c"], texts=2, parameters={})
    assert load.prompts_of(2) == ["a", "b", "c", "a"]
    numbers = [[one["number"] for one in requests] for requests in load.by_client(2)]
    assert numbers == [[0, 2], [1, 3]]


def test_changed_texts_are_counted() -> None:
    known = KnownTexts()
    assert known.count_different({0: "a", 1: "b"}) == 0
    assert known.count_different({1: "b", 2: "c"}) == 0
    before = known.sha256
    assert known.count_different({0: "a", 1: "x", 2: "y"}) == 2 and known.sha256 == before


def test_waiting_times_are_those_of_clients() -> None:
    first = {"started": 1.0, "times": [1.5, 1.75, 2.25], "ended": 2.5, "tokens": 4}
    silent = {"started": 0.5, "times": [], "ended": 0.75, "tokens": 0}
    waits = waiting_times([first, silent])
    assert waits["first_token"]["median"] == 0.5 and waits["per_token"]["median"] == 0.25
    assert waits["between"]["median"] == pytest.approx(0.375)
    assert wall_seconds([first, silent]) == 2.0


def test_host_time_is_between_forwards() -> None:
    spent = {
        'eagle_engine_seconds_total{in="rounds"}': 9.0,
        'eagle_engine_seconds_total{in="prompts"}': 2.0,
        'eagle_engine_seconds_total{in="host"}': 1.0,
        "eagle_engine_rounds_total": 500.0,
    }
    reported = engine_times(spent, 12.5, 2000)
    assert (reported.round_ms, reported.host_ms, reported.host_share) == (18.0, 2.0, 0.1)
    assert reported.tokens_per_second == 160
    unreported = engine_times({}, 12.5, 2000)
    assert unreported.host_share is None and unreported.rounds is None
    waits = {key: {"median": 0.25} for key in ("first_token", "per_token", "between")}
    alone = EngineTimes(seconds=10.0, tokens=2000)
    line = ServerTimes(clients=4, served=reported, alone=alone, different=0, **waits)
    assert line.to_json()["served_host_share"] == 0.1
    clients, host = tables([line], None)
    assert isinstance(clients, Table) and isinstance(host, Table)
    assert list(clients.columns[3].cells) == ["0.80"] and list(host.columns[5].cells) == ["10.0%"]


@pytest.mark.slow
@pytest.mark.artifact
def test_served_texts_are_those_of_the_engine_alone(
    server: Server, tiny_artifact: Path, tiny: Runner, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    options = "--clients", "1,3", "--texts", "1", "--max-new-tokens", "12", "--json"
    files = [str(tiny_artifact), "--prompts-jsonl", str(prompts)]
    done = CliRunner().invoke(main, [*files, "--url", server.url, "--no-alone", *options])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    alone = answer(tiny, [*PROMPTS, PROMPTS[0]], 2, GREEDY)
    known = KnownTexts()
    known.count_different(dict(enumerate(alone.texts)))
    assert results["texts"] == 3 and results["texts_sha256"] == known.sha256
    one, three = results["lines"]
    assert one["clients"] == 1 and three["served"]["tokens"] == alone.tokens
    assert 0 < one["served"]["rounds"] < 12
    assert 0 < one["served_host_share"] < 1
    assert len(alone.first_token) == 3 and 0 < alone.rounds_seconds < alone.seconds


@pytest.mark.artifact
def test_random_weights_are_given_words(tiny_artifact: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    manifest = Manifest.read(tiny_artifact)
    with with_words(tiny_artifact) as unchanged:
        assert unchanged == tiny_artifact
    files = {k: record for k, record in manifest.files.items() if k not in TOKENIZER_FILES}
    for name in files:
        os.link(tiny_artifact / name, bare / name)
    replace(manifest, files=files).write(bare)
    refused = CliRunner().invoke(main, [str(tiny_artifact)])
    assert refused.exit_code == 1 and "name a file of prompts" in refused.output
    with with_words(bare) as copy:
        Manifest.read(copy).verify(copy)
        tokenizer = read_tokenizer(copy)
        words = words_of(manifest)
        (prompt, other), again = random_prompts(words, 2, 9), random_prompts(words, 2, 9)
        ids = tokenizer.encode(prompt)
        assert len(ids) == 9 and tokenizer.decode(ids) == prompt and [prompt, other] == again
        assert tokenizer.decode([len(words) - 1]) == "w1023"
    assert not copy.exists()
