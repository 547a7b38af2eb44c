"""`eagle-batch` around Ray: where it continues, and what it reports about failed prompts."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.serve.on_ray import batch
from support.refusals import refuses

ANSWER = '{"prompt_tokens": 1, "text": "a"}\n'


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of answers; one line, the same for each prompt, takes the place of Ray."""

    def answer_lines(spec: batch.BatchSpec, prompts: Sequence[Any]) -> Iterator[str]:
        return (ANSWER.strip() if prompt else '{"error": "empty"}' for prompt in prompts)

    monkeypatch.setattr(batch, "answer_lines", answer_lines)
    monkeypatch.setattr(batch, "check_installed", lambda name, extra: None)
    return tmp_path / "answers.jsonl"


def run(answers: Path, *prompts: str, options: Sequence[str] = ()) -> Result:
    file = answers.with_name("prompts.jsonl")
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return CliRunner().invoke(batch.main, ["artifact", str(file), str(answers), *options])


def test_a_file_is_continued_after_its_last_whole_line(answer: Path) -> None:
    for content in ("", "{", '{"prompt_tok', ANSWER, ANSWER + ANSWER[:-1], ANSWER * 3):
        answer.write_text(content)
        assert run(answer, "a", "b", "c").exit_code == 0
        assert answer.read_text() == ANSWER * 3


@pytest.mark.parametrize(("content", "line"), [
    *((text, "holds more than answers") for text in ("notes", "notes\n", ANSWER + "notes")),
    ("[1]\n" + ANSWER, "holds more than answers"),
    ('{"prompt_tokens": 1, "tex\n', "is damaged (Invalid control"),
])  # fmt: skip
def test_a_file_of_anything_else_is_left_alone(answer: Path, content: str, line: str) -> None:
    answer.write_text(content)
    refuses(run(answer, "a", "b", "c"), line)
    assert answer.read_text() == content


def test_a_file_is_continued_with_the_same_options_alone(answer: Path) -> None:
    stored = ANSWER.replace("}", ', "parameters": {"max_new_tokens": 8, "system": "Count."}}')
    answer.write_text(stored)
    same = "--max-new-tokens", "8", "--system", "Count."
    refuses(run(answer, "a", "b", options=same[:2]), "requested with other options")
    assert answer.read_text() == stored
    assert run(answer, "a", "b", options=same).exit_code == 0
    assert answer.read_text() == stored + ANSWER


def test_drawn_seeds_may_differ_and_a_requested_one_may_not(answer: Path) -> None:
    drawn = ANSWER.replace("}", ', "parameters": {"temperature": 0.8, "seed": 3}}')
    answer.write_text(drawn)
    assert run(answer, "a", "b", options=["--temperature", "0.8"]).exit_code == 0
    assert answer.read_text() == drawn + ANSWER
    for seed in ("4", "3"):
        result = run(answer, "a", "b", options=["--temperature", "0.8", "--seed", seed])
        assert result.exit_code == int(seed == "4"), result.output


def test_sampling_options_are_those_of_eagle_run(answer: Path) -> None:
    values = {"logit_bias": {"5": -1.5}, "allowed_ids": [5, 6], "stop_ids": [2], "top_k": 9,
              "min_tokens": 1, "echo": True}  # fmt: skip
    words = "--stop", "x", "--top-k", "3", "--ignore-eos", "--logprobs", "2"
    parameters = GenerationParams(
        logit_bias={5: -1.5}, allowed_ids=(5, 6), stop_texts=("x",), stop_ids=(2,), top_k=3,
        ignore_eos=True, min_tokens=1, logprobs=2, echo=True,
    )  # fmt: skip
    stored = json.dumps({"prompt_tokens": 1, "parameters": parameters.to_json()}) + "\n"
    answer.write_text(stored)
    assert run(answer, "a", "b", options=["--params", json.dumps(values), *words]).exit_code == 0
    assert answer.read_text() == stored + ANSWER


def test_invalid_parameters_leave_no_file(answer: Path) -> None:
    refuses(run(answer, "a", options=["--temperature", "-1"]), "temperature -1.0")
    assert not answer.exists()


def test_several_answers_to_a_prompt_are_refused(answer: Path) -> None:
    refuses(run(answer, "a", options=["--params", '{"n": 2}']), "n 2: a prompt has one line")
    assert run(answer, "a", options=["--n", "2"]).exit_code == 2
    assert not answer.exists()


def test_only_one_process_writes_a_file(answer: Path) -> None:
    with answer.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refuses(run(answer, "a"), "another eagle-batch writes it")
    assert answer.read_text() == ""


def test_failed_prompts_are_reported_at_the_end_each_time(answer: Path) -> None:
    for _ in range(2):
        result = run(answer, "a", "", "c")
        assert result.exit_code == 1
        assert result.stderr.endswith('1 of 3 failed: line 2: {"error": "empty"}\n')
    assert answer.read_text().count("\n") == 3


def test_a_refused_prompt_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def generate_many(
        prompts: Sequence[str], *, keep_going: bool, max_new_tokens: int
    ) -> Iterator[Any]:
        assert keep_going and max_new_tokens == 4
        for prompt in prompts:
            answer = {"text": prompt} if prompt else {"error": "the prompt is empty"}
            yield SimpleNamespace(to_json=lambda answer=answer: answer)

    runner = SimpleNamespace(generate_many=generate_many)
    monkeypatch.setattr(
        "eagle_aot.runtime_runner.load.load_artifact", lambda artifact, verify, drafter: runner
    )
    rows = {"prompt": [json.dumps(prompt) for prompt in ("a", "", "c")]}
    options = {"drafter": "ngram"}, {"max_new_tokens": 4}
    answers = batch.Predictor(Path("artifact"), "key", *options)(rows)["answer"]
    objects = [json.loads(answer) for answer in answers]
    assert objects == [{"text": "a"}, {"error": "the prompt is empty"}, {"text": "c"}]
