"""The script that lets requests come and go and looks for texts that feel the others."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import check_engine
from check_engine import Alone, main
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.engine import Request
from support.refusals import refuses

FEW = ("--requests", "24", "--max-new-tokens", "12")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rng = random.Random(2)
    lengths = [1, 2, 64, 65, 130, *(rng.randint(1, 170) for _ in range(10))]
    lines = [{"token_ids": [rng.randrange(200) for _ in range(length)]} for length in lengths]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_texts_beside_others_are_those_alone(batch_artifact: Path, prompts: Path) -> None:
    done = run(batch_artifact, prompts, "--batch-sizes", "2,4", *FEW)
    assert done.exit_code == 0, done.output
    two, four, last = done.stdout.splitlines()
    assert two.startswith("batch size 2: 24 requests in ") and two.endswith(" 0 differ")
    assert four.startswith("batch size 4: 24 requests in ") and four.endswith(" 0 differ")
    assert last == "0 of 48 texts differ"


def test_a_text_that_differs_is_told(
    batch_artifact: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = check_engine.alone

    def wrong(runner: Runner, request: Request) -> Alone:
        (first, *others), told = alone(runner, request)
        return Alone([first ^ 1, *others], told[1:] or told)

    monkeypatch.setattr(check_engine, "alone", wrong)
    done = run(batch_artifact, prompts, "--batch-sizes", "2", *FEW)
    assert done.exit_code == 1
    *_, last = lines = done.stdout.splitlines()
    told = [line for line in lines if ": token 0 is " in line or " is told of otherwise" in line]
    assert any(line.endswith("its prompt is told of otherwise") for line in told)
    assert last == f"{len(told)} of 24 texts differ"
    assert 16 <= len(told) <= 24  # the others were cancelled before their first token


def test_a_batch_that_there_are_no_caches_for(batch_artifact: Path, prompts: Path) -> None:
    refuses(run(batch_artifact, prompts), "--batch-sizes 8: this artifact takes 1 to 4")
