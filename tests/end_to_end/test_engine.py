"""Many requests at once through a real `.pte`: each has the tokens that it has alone."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eagle_aot.common.errors import SettingError
from eagle_aot.export.cli import main as export
from eagle_aot.lab.invariants import check_invariants, check_serial
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import Finished, Limits, Request, Tokens
from support.runner.lossless import mixed_prompts

NEW_TOKENS, LONG = 16, 160


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def requests_of(runner: Runner, count: int) -> list[Request]:
    """Return requests of any length and shape, some with stop ids."""
    rng = random.Random(3)
    prompts = rng.sample(mixed_prompts(runner), count)
    vocabulary = range(runner.constants.vocab_size)
    return [
        Request(
            prompt=tuple(prompt),
            limits=Limits(
                max_new_tokens=min(NEW_TOKENS, runner.constants.max_seq_len - len(prompt)),
                stop_ids=frozenset(rng.sample(vocabulary, rng.choice((0, 9)))),
            ),
            chain_len=rng.choice((0, 1, 4, 7, 15)),
            tree=rng.choice((None, None, "auto", Shape(3, 2, 7), Shape(6, 4, 14), Shape(4, 8, 32))),
            reuse=rng.random() < 0.5,
        )
        for prompt in prompts
    ]


def alone(runner: Runner, request: Request) -> list[int]:
    result = runner.generate(
        request.prompt,
        request.limits.max_new_tokens,
        speculate=False,
        stop_ids=request.limits.stop_ids,
    )
    return result.token_ids


def test_texts_in_a_batch_are_those_alone(batch_runner: Runner) -> None:
    """Whenever requests come, and whichever are cancelled."""
    batch_runner.adaptive_schedule(True)  # measured while no request runs
    engine, rng = batch_runner.engine, random.Random(4)
    requests = requests_of(batch_runner, 40)
    expected = [alone(batch_runner, request) for request in requests]
    numbers: list[int] = []
    outputs: dict[int, list[int]] = {}
    to_cancel, cancelled = set[int](), set[int]()
    while len(numbers) < len(requests) or engine.busy:
        if len(numbers) < len(requests) and rng.random() < 0.4:
            numbers.append(engine.add(requests[len(numbers)]))
            outputs[numbers[-1]] = []
        if len(numbers) % 8 == 5 and numbers[-1] not in to_cancel:
            engine.cancel(numbers[-1])
            to_cancel.add(numbers[-1])
        events = engine.step()
        check_invariants(engine)
        for event in events:
            assert isinstance(event, Tokens | Finished)
            if isinstance(event, Tokens):
                outputs[event.request] += event.tokens
            elif event.reason == "cancelled":
                cancelled.add(event.request)
        if rng.random() < 0.05:
            check_serial(engine)
    assert cancelled and cancelled <= to_cancel
    for number, text in zip(numbers, expected, strict=True):
        if number in cancelled:
            text = text[: len(outputs[number])]
        assert outputs[number] == text


@pytest.mark.slow
def test_more_texts_than_a_step_has_rows_of_drafts(tmp_path: Path) -> None:
    """Rounds of 65 texts and more have one row of each, and fewer texts draft again."""
    options = "--target-model gemma4-tiny --backend xnnpack --no-self-test --max-seq-len 192"
    command = [*options.split(), "--max-batch-size", "72", "--output-dir", str(tmp_path / "many")]
    assert CliRunner().invoke(export, command).exit_code == 0
    runner = load_artifact(tmp_path / "many")
    requests = long_answers(mixed_prompts(runner)[:90])
    expected = [alone(runner, request) for request in requests]
    engine, texts, widest = runner.engine, dict[int, list[int]](), 0
    for request in requests:
        texts[engine.add(request)] = []
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Tokens):
                texts[event.request] += event.tokens
        widest = max(widest, len(engine.running))
    assert widest > 64 and all(len(text) == LONG for text in texts.values())
    for text, wanted in zip(texts.values(), expected, strict=True):
        assert text[: len(wanted)] == wanted  # alone, a text ends where the model ends it


def long_answers(prompts: list[list[int]]) -> list[Request]:
    limits = Limits(max_new_tokens=LONG, stop_ids=frozenset())
    return [Request(prompt=tuple(p[:20]), limits=limits, chain_len=4) for p in prompts]


def test_prompts_in_a_batch_are_answered_in_their_order(
    batch_runner: Runner, batch_artifact: Path, tmp_path: Path
) -> None:
    prompts = mixed_prompts(batch_runner)[3:11]
    expected = [batch_runner.generate(p, NEW_TOKENS).token_ids for p in prompts]
    for size in (1, 3, None):
        results = list(batch_runner.generate_many(prompts, size, max_new_tokens=NEW_TOKENS))
        assert [r.token_ids for r in results if not hasattr(r, "error")] == expected
    file, plot = tmp_path / "prompts.jsonl", tmp_path / "sequences.png"
    file.write_text("".join(json.dumps({"token_ids": p}) + "\n" for p in prompts))
    options = ("--prompts-jsonl", file, "--max-new-tokens", str(NEW_TOKENS), "--batch-size", "4")
    done = run(batch_artifact, *options, "--json", "--plot", plot)
    assert done.exit_code == 0, done.output
    *answers, last = map(json.loads, done.stdout.splitlines())
    assert [answer["token_ids"] for answer in answers] == expected
    assert last["summary"]["batch_size"] == 4
    assert last["summary"]["tokens_per_second_of_all"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_measuring_the_cost_of_drafts_leaves_no_request_running(batch_runner: Runner) -> None:
    for trees in (False, True):
        assert batch_runner.adaptive_schedule(trees).chooser.costs.measured
    check_invariants(batch_runner.engine)


def test_an_interrupted_step_leaves_an_engine_that_works(
    batch_runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(tokens: list[int]) -> None:
        raise KeyboardInterrupt

    prompt = mixed_prompts(batch_runner)[6]
    expected = batch_runner.generate(prompt, NEW_TOKENS).token_ids
    with pytest.raises(KeyboardInterrupt):
        batch_runner.generate(prompt, NEW_TOKENS, on_tokens=interrupt)
    assert not batch_runner.engine.busy
    check_invariants(batch_runner.engine)
    assert batch_runner.generate(prompt, NEW_TOKENS).token_ids == expected


def test_a_batch_without_caches_is_refused(batch_runner: Runner, batch_artifact: Path) -> None:
    with pytest.raises(SettingError, match="has caches for 4 sequences"):
        list(batch_runner.generate_many([[1]], 5))
    refused = run(batch_artifact, "--prompt", "x", "--batch-size", "2")
    assert refused.exit_code == 2 and "--prompts-jsonl" in refused.output
