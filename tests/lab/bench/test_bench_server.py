"""The script that measures a server beside its engine alone."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bench_server import main
from eagle_aot.artifact import TOKENIZER_FILES, Manifest
from eagle_aot.common.tokenizer import read_tokenizer
from eagle_aot.lab.bench.server.figures import EngineTime, Line, clock, times
from eagle_aot.lab.bench.server.in_engine import answered
from eagle_aot.lab.bench.server.load import Known, Load
from eagle_aot.lab.bench.server.measure import engine_time
from eagle_aot.lab.bench.server.tables import tables
from eagle_aot.lab.bench.server.words import made_up, with_words, words
from eagle_aot.runtime_runner import Runner
from support.server import Server

PROMPTS = ["Ada has 27 marbles. How many has she?", "Mei owns 7 oranges."]
GREEDY = {"max_new_tokens": 12, "temperature": 0.0, "speculate": True}


def test_clients_ask_in_turn_for_texts_of_their_own() -> None:
    load = Load(prompts=["a", "b", "c"], texts=2, parameters={})
    assert load.of(2) == ["a", "b", "c", "a"]
    found = [[one["number"] for one in texts] for texts in load.of_each(2)]
    assert found == [[0, 2], [1, 3]]


def test_a_text_that_changes_is_noticed() -> None:
    known = Known()
    assert known.different({0: "a", 1: "b"}) == 0 and known.different({1: "b", 2: "c"}) == 0
    before = known.sha256
    assert known.different({0: "a", 1: "x", 2: "y"}) == 2 and known.sha256 == before


def test_waits_are_those_of_clients() -> None:
    first = {"started": 1.0, "times": [1.5, 1.75, 2.25], "ended": 2.5, "tokens": 4}
    silent = {"started": 0.5, "times": [], "ended": 0.75, "tokens": 0}
    found = times([first, silent])
    assert found["first_token"]["median"] == 0.5 and found["per_token"]["median"] == 0.25
    assert found["between"]["median"] == pytest.approx(0.375)
    assert clock([first, silent]) == 2.0


def test_host_time_is_what_lies_between_forwards(capsys: pytest.CaptureFixture[str]) -> None:
    spent = {
        'eagle_engine_seconds_total{in="rounds"}': 9.0,
        'eagle_engine_seconds_total{in="prompts"}': 2.0,
        'eagle_engine_seconds_total{in="host"}': 1.0,
        "eagle_engine_rounds_total": 500.0,
    }
    told = engine_time(spent, 12.5, 2000)
    assert (told.round_ms, told.host_ms, told.host_share) == (18.0, 2.0, 0.1)
    assert told.tokens_per_second == 160
    untold = engine_time({}, 12.5, 2000)
    assert untold.host_share is None and untold.rounds is None
    waits = {key: {"median": 0.25} for key in ("first_token", "per_token", "between")}
    line = Line(clients=4, served=told, alone=EngineTime(seconds=10.0, tokens=2000), **waits,
                text_rounds=1000, cpu_seconds=0.5, clients_cpu=0.1, different=0)  # fmt: skip
    assert (line.texts_of_round, line.tau, line.cpu_of_round) == (2.0, 2.0, 1.0)
    assert line.to_json()["served_host_share"] == 0.1
    shown, host = tables([line], None)
    assert list(shown.columns[3].cells) == ["0.80"] and list(host.columns[7].cells) == ["10.0%"]


@pytest.mark.artifact
def test_it_measures_a_server(
    server: Server, int4_head_artifact: Path, int4_head: Runner, tmp_path: Path
) -> None:
    """Texts are those of the artifact alone, whichever client asks."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    how = "--clients", "1,3", "--texts", "1", "--max-new-tokens", "12", "--json"
    asked = [str(int4_head_artifact), str(prompts), "--url", server.url, "--no-alone", *how]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    alone = answered(
        int4_head, {"prompts": [*PROMPTS, PROMPTS[0]], "batch_size": 2, "parameters": GREEDY}
    )
    known = Known()
    known.different(dict(enumerate(alone["texts"])))
    assert told["texts"] == 3 and told["texts_sha256"] == known.sha256
    one, three = told["lines"]
    assert one["clients"] == 1 and three["served"]["tokens"] == alone["tokens"]
    assert 0 < one["served"]["rounds"] <= one["text_rounds"] < 12
    assert 0 < one["served_host_share"] < 1 and one["cpu_of_token"] > 0
    assert len(alone["first"]) == 3 and 0 < alone["rounds_seconds"] < alone["seconds"]


@pytest.mark.artifact
def test_random_weights_are_given_words(int4_head_artifact: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    manifest = Manifest.read(int4_head_artifact)
    with with_words(int4_head_artifact) as same:
        assert same == int4_head_artifact
    files = {name: kept for name, kept in manifest.files.items() if name not in TOKENIZER_FILES}
    for name in files:
        os.link(int4_head_artifact / name, bare / name)
    replace(manifest, files=files).write(bare)
    refused = CliRunner().invoke(main, [str(int4_head_artifact)])
    assert refused.exit_code == 1 and "name a file of prompts" in refused.output
    with with_words(bare) as found:
        Manifest.read(found).verify(found)
        tokenizer = read_tokenizer(found)
        every = words(manifest)
        (prompt, other), again = made_up(every, 2, 9), made_up(every, 2, 9)
        ids = tokenizer.encode(prompt)
        assert len(ids) == 9 and tokenizer.decode(ids) == prompt and [prompt, other] == again
        assert tokenizer.decode([len(every) - 1]) == "w1023"
    assert not found.exists()
