"""Answers of a given form: they match it, and no draft or neighbour changes a token."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.cli import main
from eagle_aot.runtime_runner.frontend.generation import Result, generate_in_order
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["red", "blé"]}, "minItems": 1, "maxItems": 2},
        "size": {
            "type": "object",
            "properties": {"n": NUMBER},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
RECURSIVE = {
    "type": "object",
    "properties": {"v": NUMBER, "next": {"$ref": "#"}},
    "required": ["v", "next"],
    "additionalProperties": False,
}
"""It never ends."""
REGEX = r"(yes|no), [A-Z][a-z]{1,6} has [0-9]{1,3}\."
GRAMMAR = 'start: item (", " item)~1..2\nitem: /[0-9]{1,3}/ " + " /[0-9]{1,3}/'
CHOICES = ("Paris", "Par", "London is large")
STRUCTURES: list[dict[str, Any]] = [
    {"json_schema": SCHEMA}, {"regex": REGEX}, {"grammar": GRAMMAR}, {"choices": CHOICES},
    {"json_schema": RECURSIVE},
]  # fmt: skip
FORMS = "json_schema", "regex", "grammar", "choices"
SAMPLED = {"temperature": 1.0, "top_p": 0.9, "seed": 3}
DRAFTS: list[dict[str, Any]] = [
    {"chain_len": 1}, {"chain_len": 4}, {"chain_len": 7}, {"tree": (4, 4, 16)},
    {"tree": (6, 3, 31)}, {"chain_len": 4, "reuse": True},
]  # fmt: skip
PROMPTS = ["Ada has 27 marbles. How many has Tom, who has 3 times as many?", "What is 3 + 4?"]


def matches(structure: dict[str, Any], text: str) -> bool:
    """Return whether a text has the form, by other means than ours."""
    if "json_schema" in structure:
        jsonschema.validate(json.loads(text), SCHEMA)
        return True
    pattern = structure.get("regex", r"\d{1,3} \+ \d{1,3}(, \d{1,3} \+ \d{1,3}){1,2}")
    return text in CHOICES if "choices" in structure else bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    "structure",
    [*STRUCTURES[:-1], pytest.param(STRUCTURES[-1], marks=pytest.mark.slow)],
    ids=[*FORMS, "endless"],
)
@pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_do_not_change_a_structured_answer(
    tiny: Runner, structure: dict[str, Any], sampled: dict[str, Any]
) -> None:
    for prompt in PROMPTS:
        options = {**structure, **sampled, "max_new_tokens": 100}
        plain = tiny.generate(prompt, speculate=False, **options)
        assert (plain.finish_reason == "stop") != (structure == STRUCTURES[-1])
        assert plain.finish_reason == "length" or matches(structure, plain.text or "")
        for drafts in DRAFTS:
            assert tiny.generate(prompt, **drafts, **options).token_ids == plain.token_ids


def test_prompt_lookup_does_not_change_a_structured_answer(
    tiny: Runner, tiny_artifact: Path
) -> None:
    with load_artifact(tiny_artifact, drafter="ngram") as ngram:
        for structure in STRUCTURES:
            answers = [runner.generate(PROMPTS[0], 60, **structure) for runner in (tiny, ngram)]
            assert answers[0].token_ids == answers[1].token_ids


def test_neighbours_do_not_change_a_structured_answer(tiny: Runner) -> None:
    """Four at once: two of the requests have no form, and two are sampled."""
    fields: list[dict[str, Any]] = [*STRUCTURES, {}, SAMPLED, {"regex": REGEX} | SAMPLED]
    params = [GenerationParams(max_new_tokens=40, **each) for each in fields]
    alone = [tiny.answer(PROMPTS[0], each).token_ids for each in params]
    generations = (tiny.generation(PROMPTS[0], each) for each in params)
    together = generate_in_order(tiny.engine, generations, 4)
    assert [r.token_ids for r in together if isinstance(r, Result)] == alone


def test_an_answer_that_is_cut_begins_the_whole_one(tiny: Runner) -> None:
    whole = tiny.generate(PROMPTS[0], 160, json_schema=SCHEMA).token_ids
    cut = tiny.generate(PROMPTS[0], 12, json_schema=SCHEMA)
    assert cut.token_ids == whole[:12] and cut.finish_reason == "length"


def test_a_form_that_cannot_be_read_is_refused_before_anything_runs(tiny: Runner) -> None:
    with pytest.raises(SettingError, match="regex: "):
        tiny.generate(PROMPTS[0], regex="(")
    with pytest.raises(SettingError, match="regex does not go with ignore_eos"):
        tiny.generate(PROMPTS[0], regex="a", ignore_eos=True)
    assert not tiny.engine.busy


def test_eagle_run_reads_forms(tiny_artifact: Path, tmp_path: Path) -> None:
    files = {"schema.json": json.dumps(SCHEMA), "form.lark": GRAMMAR}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ways: list[tuple[str, str]] = [
        ("--json-schema", str(tmp_path / "schema.json")), ("--json-schema", files["schema.json"]),
        ("--regex", REGEX), ("--grammar", str(tmp_path / "form.lark")), ("--choices", "a,b c"),
    ]  # fmt: skip
    texts = []
    for way in ways:
        arguments = [str(tiny_artifact), "--prompt", PROMPTS[0], "--quiet", *way]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        texts.append(done.stdout.rstrip("\n"))
    assert texts[0] == texts[1] and texts[4] in ("a", "b c")
    forms: list[dict[str, Any]] = [STRUCTURES[i] for i in (0, 0, 1, 2)]
    assert all(map(matches, forms, texts[:4]))
    refused = CliRunner().invoke(main, [str(tiny_artifact), "--grammar", "nowhere.lark"])
    assert refused.exit_code == 2 and "no readable file nowhere.lark" in refused.stderr
