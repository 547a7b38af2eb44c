"""Prompts that begin alike, through a real `.pte`: copied rows are those that a run would give."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.engine import Engine, Failed, Finished, Request, Tokens
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams

SYSTEM = 100
"""Tokens that all prompts begin with."""


def ids(runner: Runner, rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(5, runner.constants.vocab_size) for _ in range(count)]


def requests_of(runner: Runner) -> list[Request]:
    """Return eight requests with one system prompt, greedy and sampled; two are the same."""
    rng = random.Random(6)
    system = ids(runner, rng, SYSTEM)
    prompts = [system + ids(runner, rng, rng.randint(1, 27)) for _ in range(7)]
    params = GenerationParams(max_new_tokens=20, ignore_eos=True, reuse=True)
    return [
        runner.request(prompt, msgspec.structs.replace(params, temperature=float(i % 2), seed=i))
        for i, prompt in enumerate([*prompts, prompts[0]])
    ]


def serve(
    engine: Engine, requests: list[Request], rng: random.Random
) -> tuple[list[list[int]], list[int]]:
    """Return the answers to requests that come at any time, and their numbers of reused rows."""
    coming = list(requests)
    answers: dict[int, list[int]] = {}
    kept: dict[int, int] = {}
    while coming or engine.busy:
        if coming and rng.random() < 0.3:
            answers[engine.add(coming.pop(0))] = []
        for event in engine.step():
            assert not isinstance(event, Failed), event.error
            if isinstance(event, Tokens):
                answers[event.request] += event.tokens
            elif isinstance(event, Finished):
                kept[event.request] = event.reused
    return list(answers.values()), [kept[number] for number in answers]


@pytest.mark.parametrize("seed", range(3))
def test_a_system_prompt_of_many_is_run_once(batch_runner: Runner, seed: int) -> None:
    engine, requests = batch_runner.engine, requests_of(batch_runner)
    plain = [replace(request, reuse=False, chain_len=0) for request in requests]
    expected, none = serve(engine, plain, random.Random(seed))
    engine.sequence_pool.forget()
    found, kept = serve(engine, requests, random.Random(seed))
    assert found == expected
    assert set(none) == {0}
    assert sum(rows >= 64 for rows in kept) >= 4, "of the others' chunks, at least the first"


def test_answers_to_one_prompt_run_it_once(batch_runner: Runner) -> None:
    prompt = ids(batch_runner, random.Random(2), 120)
    how: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "seed": 5}
    batch_runner.engine.sequence_pool.forget()
    answers = list(batch_runner.generate_many([prompt], n=4, **how))
    found = [answer for answer in answers if not isinstance(answer, Failed)]
    alone = [batch_runner.generate(prompt, **how | {"seed": 5 + i}).token_ids for i in range(4)]
    assert [answer.token_ids for answer in found] == alone
    assert sorted(answer.cached_tokens for answer in found) == [0, 119, 119, 119]


@pytest.mark.parametrize("drafter", ["eagle3", "ngram"])
def test_a_drafter_drafts_after_copied_rows_as_after_a_prompt(
    batch_artifact: Path, drafter: str
) -> None:
    """As many drafts are right in each round as after a prompt that is run."""
    runner, rng = load_artifact(batch_artifact, drafter=drafter), random.Random(3)
    first = ids(runner, rng, 25) * 4
    runner.generate(first, 4, 4)
    for _ in range(3):
        prompt = first[:90] + ids(runner, rng, 2) + first[:10]
        forked = runner.generate(prompt, 40, 4, reuse=True)
        alone = runner.generate(prompt, 40, 4)
        assert (forked.cached_tokens, alone.cached_tokens) == (89, 0)
        assert forked.token_ids == alone.token_ids
        assert forked.stats.accepted_lengths == alone.stats.accepted_lengths


def test_no_reuse_runs_every_prompt(batch_artifact: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"token_ids": [*range(5, 105), last]} for last in (5, 6)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [str(batch_artifact), "--prompts-jsonl", str(prompts), "--max-new-tokens", "4"]
    kept, texts = [], []
    for switch in ("--reuse", "--no-reuse"):
        done = CliRunner().invoke(
            main, [*command, "--batch-size", "4", "--n", "2", switch, "--json"]
        )
        assert done.exit_code == 0, done.output
        *answers, _ = map(json.loads, done.stdout.splitlines())
        kept.append([answer["cached_tokens"] for answer in answers])
        texts.append([answer["token_ids"] for answer in answers])
    assert texts[0] == texts[1]
    assert sorted(kept[0])[1] >= 99 and kept[1] == [0] * 4
