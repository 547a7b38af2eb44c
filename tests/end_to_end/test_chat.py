"""Conversations through the real `.pte`: reused rows of a cache change no token, and no bit."""

import itertools
import json
import random
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor

from eagle_aot.common.prompts import Message
from eagle_aot.lab.training.tiny.stories import stories
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.decode.step import chain_rows
from eagle_aot.runtime_runner.decode.target import no_moves
from eagle_aot.runtime_runner.frontend.conversation import Conversation

SYSTEM = "You count things."
QUESTIONS = [one.question for one in itertools.islice(stories(21, "test"), 12)]
LONG = " ".join(QUESTIONS[1:])
TURNS = [*QUESTIONS[:2], LONG, QUESTIONS[2], LONG, QUESTIONS[3]]
NEW_TOKENS = 24


def run(*arguments: str | Path, typed: str = "") -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], input=typed)


def objects(done: Result) -> list[dict[str, object]]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("speculate", [True, False])
def test_answers_in_a_chat_are_those_to_all_its_messages(tiny: Runner, speculate: bool) -> None:
    """For every turn, also after the context was full and the oldest turns were forgotten."""
    conversation, prompts, answers = Conversation(tiny, SYSTEM), [], []
    for turn in TURNS:
        answers.append(conversation.say(turn, NEW_TOKENS, speculate=speculate))
        prompts.append(conversation.messages[:-1])
    assert conversation.forgotten == 3 and len(prompts[-1]) == 1 + 5
    for messages, answer in zip(prompts, answers, strict=True):
        fresh = tiny.generate(messages, NEW_TOKENS, speculate=speculate)
        assert fresh.cached_tokens == 0
        assert fresh.token_ids == answer.token_ids and fresh.text == answer.text
        assert fresh.prompt_tokens == answer.prompt_tokens
        assert answer.stats.prefill_chunks <= fresh.stats.prefill_chunks
    assert sum(answer.cached_tokens > 0 for answer in answers) >= 2


def test_a_chat_prints_what_a_file_of_its_messages_does(
    tiny_artifact: Path, tmp_path: Path
) -> None:
    options = ("--json", "--system", SYSTEM, "--max-new-tokens", NEW_TOKENS, "--stop", "ogether")
    spoken = objects(run(tiny_artifact, "--chat", *map(str, options), typed="\n".join(TURNS[:3])))
    messages: list[Message] = []
    lines = []
    for turn, answer in zip(TURNS[:3], spoken, strict=True):
        messages.append({"role": "user", "content": turn})
        lines.append(json.dumps({"messages": messages}))
        messages.append({"role": "assistant", "content": str(answer["text"])})
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    file = tmp_path / "prompts.jsonl"
    *read, _ = objects(run(tiny_artifact, "--prompts-jsonl", file, *map(str, options)))
    for name in ("prompt_tokens", "token_ids", "text", "finish_reason"):
        assert [answer[name] for answer in spoken] == [answer[name] for answer in read]


def probe(runner: Runner, prompt: list[int], reuse: bool) -> tuple[int, int, Tensor]:
    """Return how many rows were reused, the first new token, and logits of a few rows after it."""
    result = runner.generate(prompt, 1, reuse=reuse)
    rows = torch.tensor([[7, 8, 9]])
    pool, start = runner.engine.sequence_pool, torch.tensor([len(prompt)])
    step = chain_rows(rows, start, torch.tensor(pool.free[-1:]), runner.constants.tail)
    pool.forget()  # the rows are stored after the prompt, in the sequence that was freed last
    logits = runner.target.verify(step, no_moves(1, runner.constants.tail, rows.device)).logits
    return result.cached_tokens, result.token_ids[0], logits.clone()


def reused_rows(runner: Runner) -> list[int]:
    """Compare texts that continue an answer, or begin in its middle, or cross a whole chunk, with
    fresh runs of them, and return how many rows of each were reused."""
    rng, cached = random.Random(3), []
    for length, answer, shared, new in [
        (20, 12, 32, 9), (20, 12, 25, 30), (60, 30, 90, 5), (60, 50, 110, 5), (100, 20, 120, 20),
        (100, 20, 98, 20), (110, 40, 100, 3), (70, 1, 70, 1), (30, 8, 0, 30), (150, 20, 170, 6),
        (100, 77, 98, 20), (20, 150, 30, 20),
    ]:  # fmt: skip
        prompt = [rng.randrange(runner.constants.vocab_size) for _ in range(length)]
        answered = runner.generate(prompt, answer, chain_len=rng.randrange(1, 8))
        text = [*prompt, *answered.token_ids][:shared]
        text += [rng.randrange(runner.constants.vocab_size) for _ in range(new)]
        reused, first, logits = probe(runner, text, reuse=True)
        _, expected, fresh = probe(runner, text, reuse=False)
        assert first == expected and torch.equal(logits, fresh)
        cached.append(reused)
    return cached


def test_reused_rows_have_the_bits_of_a_fresh_run(qwen3_runner: Runner) -> None:
    """The ring of the sliding layers just has the keys of the last text but one, and lacks those of
    the last."""
    assert qwen3_runner.constants.max_prefill_chunk == 96
    assert reused_rows(qwen3_runner) == [31, 24, 89, 0, 119, 97, 99, 69, 0, 169, 97, 0]


def test_rows_of_any_sequence_have_the_bits_of_a_fresh_run(batch_runner: Runner) -> None:
    """Those that another sequence held are copied or run there."""
    assert sum(reused_rows(batch_runner)) > 0


def divide_by_zero(tokens: list[int]) -> None:
    raise ZeroDivisionError


def test_rows_of_other_runs_are_not_reused(tiny: Runner) -> None:
    prompt = tiny.encode(QUESTIONS[0])
    longer = [*prompt, *tiny.generate(prompt, 8).token_ids, 5]
    assert tiny.generate(longer, 1, reuse=True).cached_tokens == len(longer) - 2
    tiny.round(2)
    assert tiny.generate(longer, 1, reuse=True).cached_tokens == 0
    with pytest.raises(ZeroDivisionError):
        tiny.generate(longer, 8, on_tokens=divide_by_zero)
    again = tiny.generate(longer, 8, reuse=True)  # it was cancelled: what was run is right
    assert again.cached_tokens == len(longer) - 1
    assert again.token_ids == tiny.generate(longer, 8).token_ids


def test_a_cancelled_answer_is_part_of_the_conversation(tiny: Runner) -> None:
    conversation = Conversation(tiny)
    whole = tiny.generate(QUESTIONS[0])
    cancelled = iter([False] * 9)
    answer = conversation.say(QUESTIONS[0], cancelled=lambda: next(cancelled, True))
    assert answer.finish_reason == "cancelled"
    assert answer.token_ids == whole.token_ids[:10]
    assert conversation.messages[-1] == {"role": "assistant", "content": answer.text}
    assert conversation.say("And then?", 4).cached_tokens > answer.prompt_tokens


def test_a_chat_continues_after_a_turn_that_does_not_fit(tiny_artifact: Path) -> None:
    typed = "\n".join([QUESTIONS[0], "Tom " * 1200, "/reset", QUESTIONS[0], "/exit", QUESTIONS[1]])
    done = run(tiny_artifact, "--chat", "--max-new-tokens", "8", typed=typed)
    assert done.exit_code == 0
    first, second, rest = done.stdout.split("\n")
    assert first == second and not rest
    help_, cost, refusal, again, _ = done.stderr.splitlines()
    assert "/exit" in help_ and "tokens/s" in cost and "cut at --max-new-tokens" in cost
    assert refusal.startswith("Error: the prompt has") and "the context 1024" in refusal
    assert "begins again" in again
    quiet = run(tiny_artifact, "--chat", "--quiet", "--max-new-tokens", "8", typed=QUESTIONS[0])
    assert (quiet.stdout, quiet.stderr) == (first + "\n", "")


def test_a_full_context_is_reported(tiny_artifact: Path) -> None:
    typed = "\n".join([LONG, LONG, LONG])
    done = run(tiny_artifact, "--chat", "--quiet", "--max-new-tokens", "4", typed=typed)
    assert done.stderr == "The context is full: forgot the oldest of its turns (2)\n"
    assert done.stdout.count("\n") == 3
