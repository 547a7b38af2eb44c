"""The comparison of answers of given forms, and its own judgement of their forms."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eagle_aot.lab.checks import constraints
from eagle_aot.lab.checks.constraints import Compared, FormAnswers
from eagle_aot.lab.checks.forms import FORMS, has_form

NESTED = '{"name": "Ada", "tags": ["red", "blé"], "size": {"n": 99, "x": -1.5}}'


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("nested", NESTED),
        ("recursive", '{"v": 1, "next": {"v": 2, "next": null}}'),
        ("answer", '{"why": "\\u00e9\\n", "answer": -3}'),
        ("regex", "yes, Té has 12."),
        ("grammar", "1 + 2, 30 + 4"),
        ("choices", "Paris"),
    ],
)
def test_each_beginning_of_an_answer_has_its_form(form: str, text: str) -> None:
    structure = FORMS[form]
    assert has_form(structure, text) and not has_form(structure, f"{text}x")
    assert not has_form(structure, text[:-1]) and not has_form(structure, f"{text}x", is_cut=True)
    assert all(has_form(structure, text[:end], is_cut=True) for end in range(1, len(text) + 1))
    assert not has_form(structure, f"?{text[:-1]}", is_cut=True)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "tags": ["green", ',
        '{"name": "A name that is too long", "tags": ',
        '{"name": "Ada", "tags": ["red"], "size": {"n": 100, ',
        '{"name": 1, ',
        '{"other": 1, ',
        '{"name": "Ada"}, ',
        "[",
    ],
)
def test_what_cannot_become_an_answer_does_not_begin_one(text: str) -> None:
    assert not has_form(FORMS["nested"], text, is_cut=True)


def prompts_in(directory: Path, *prompts: str) -> Path:
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(constraints.main, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_processes_share_the_prompts(tiny_artifact: Path, tmp_path: Path) -> None:
    prompts = prompts_in(tmp_path, "What is 3 + 4?", "Ada has 27 marbles.", "How many?")
    done = run(tiny_artifact, prompts, "--max-new-tokens", 6, "--jobs", 2)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[-1].startswith("0 of 324 texts differ, 0 are invalid; ")  # 3 x 6 forms x 2 x 9
    reused = [line for line in lines if line.startswith("  reuse ")]
    assert len(reused) == 12 and not any(line.endswith(", 0 cached") for line in reused)


def test_texts_that_differ_and_invalid_ones_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = Compared(texts=3, tokens=9, rounds=3, seconds=1.0, differing=["'a' is [1]"])
    answers = FormAnswers({"chain 4": compared}, ended=0, invalid=["'b' (length)"])
    monkeypatch.setattr(constraints, "compare", lambda *arguments: answers)
    done = run(tmp_path, prompts_in(tmp_path, "What is 3 + 4?"))
    assert done.exit_code == 1
    assert "    'a' is [1]\n  invalid: 'b' (length)\n" in done.output
    assert done.output.splitlines()[-1].startswith("12 of 36 texts differ, 12 are invalid; ")
