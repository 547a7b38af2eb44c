"""Which tokens a constraint forbids, compared with what the texts of all tokens would add."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.runtime_runner.sampling.constraint import (
    Constraint,
    ConstraintError,
    GrammarCompiler,
)
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler

ROOT = Path(__file__).parents[3]
VOCABULARY = ROOT / "targets" / "tiny" / "target" / "tokenizer.json"
TOKENIZER = Tokenizer.from_file(str(VOCABULARY))
VOCAB = TOKENIZER.get_vocab_size() + 8
"""With ids that no token has."""
STOP = 1
COMPILER = GrammarCompiler(VOCABULARY, VOCAB, [STOP])
TEXTS = [TOKENIZER.decode([i], skip_special_tokens=False) for i in range(VOCAB)]
SPECIAL = {i for i, t in TOKENIZER.get_added_tokens_decoder().items() if t.special}


def token_of(character: str) -> int:
    (token,) = TOKENIZER.encode(character, add_special_tokens=False).ids
    return token


def constraint_of(**structure: object) -> Constraint:
    constraint = COMPILER.compile(SamplingParams(**structure))  # type: ignore[arg-type]
    assert constraint is not None
    return constraint


def allowed(constraint: Constraint, path: Iterable[int] = ()) -> set[int]:
    forbidden = constraint.forbidden([*path])
    assert forbidden is not None and forbidden.shape == (VOCAB,)
    return set((~forbidden).nonzero().flatten().tolist())


def expected(choices: Iterable[str], text: str) -> set[int]:
    """Return the tokens after which some choice can still be written."""
    choices = [*choices]
    tokens = {i for i, added in enumerate(TEXTS) if added and i not in SPECIAL
              and any(c.startswith(text + added) for c in choices)}  # fmt: skip
    return tokens | ({STOP} if text in choices else set())


WORDS = st.text('abt 1{}"', min_size=1, max_size=6)


def is_forced(choices: Iterable[str], text: str) -> bool:
    """Whether all choices that begin like this continue with one character.

    llguidance then allows only the token that the tokenizer would take.
    """
    rests = {choice[len(text) :][:1] for choice in choices if choice.startswith(text)}
    return len(rests) == 1


@settings(max_examples=60, deadline=None)
@given(choices=st.lists(WORDS, min_size=1, max_size=5, unique=True), data=st.data())
def test_tokens_are_forbidden_that_begin_no_choice(choices: list[str], data: st.DataObject) -> None:
    constraint = constraint_of(choices=tuple(choices))
    text, path = "", list[int]()
    while (tokens := expected(choices, text)) - {STOP}:
        found = allowed(constraint, path)
        assert found and (found == tokens or (found < tokens and is_forced(choices, text)))
        token = data.draw(st.sampled_from(sorted(found - {STOP})))
        if data.draw(st.booleans()):  # a draft
            path.append(token)
        else:  # a token of the answer, after the drafts so far
            for accepted in (*path, token):
                constraint.advance(accepted)
            path = []
        text += TEXTS[token]
    assert text in choices and allowed(constraint, path) == {STOP}


def test_a_path_leaves_the_answer_as_it_was() -> None:
    constraint = constraint_of(regex="[0-9]+ab?")
    before = allowed(constraint)
    one, letter = token_of("1"), token_of("a")
    assert allowed(constraint, [one, one]) == before | {letter}
    assert allowed(constraint) == before


@pytest.mark.parametrize("path", [["b"], ["1", "b"]])
def test_nothing_is_forbidden_after_a_path_that_leaves_the_constraint(path: list[str]) -> None:
    ids = [token_of(text) for text in path]
    assert constraint_of(regex="[0-9]+a").forbidden(ids) is None


def test_nothing_is_forbidden_after_the_end() -> None:
    constraint = constraint_of(choices=("a",))
    letter = token_of("a")
    assert constraint.forbidden([letter, STOP, letter]) is None


def test_an_answer_that_leaves_its_constraint_is_an_error() -> None:
    constraint = constraint_of(regex="[0-9]+")
    with pytest.raises(ConstraintError, match="the answer's form: "):
        constraint.advance(token_of("b"))


@pytest.mark.parametrize(
    "structure, line",
    [
        ({"regex": "(a"}, 'regex: at 1(8): invalid regex "(a"'),
        ({"grammar": "start: x"}, "grammar: at 1(8): unknown name"),
        ({"json_schema": '{"type": "integer"'}, "json_schema: EOF while parsing an object"),
        ({"json_schema": '{"type": "frob"}'}, "json_schema: Invalid type: frob"),
        ({"json_schema": '{"$ref": "#"}'}, "json_schema: "),
        ({"json_schema": '{"$ref": "https://example.org/a"}'}, "json_schema: Resource"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(structure: dict[str, str], line: str) -> None:
    with pytest.raises(SettingError) as error:
        constraint_of(**structure)
    assert str(error.value).startswith(line) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"regex": "a", "choices": ("b",)}, "regex and choices: an answer has one form"),
        ({"regex": "a", "min_tokens": 2}, "regex does not go with min_tokens"),
        ({"choices": ("a",), "allowed_ids": (1,)}, "choices does not go with allowed_ids"),
        ({"choices": ()}, "choices: none or an empty one"),
        ({"choices": ("a", "")}, "choices: none or an empty one"),
        ({"regex": "a" * 1_000_001}, "regex: 1000001 characters: at most 1000000"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, object], line: str) -> None:
    with pytest.raises(SettingError, match=line):
        SamplingParams(**fields)  # type: ignore[arg-type]


def test_a_program_without_stop_ids_has_no_constraints() -> None:
    with pytest.raises(SettingError, match="no stop id"):
        GrammarCompiler(VOCABULARY, VOCAB, [])


def test_a_tokenizer_that_is_not_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json: for answers of a given form: "):
        GrammarCompiler(path, VOCAB, [STOP])


def test_each_row_is_constrained_by_its_sequence_and_path() -> None:
    sampler = Sampler(3, "cpu", 16, VOCAB)
    number = SamplingParams(regex="[0-9]+b")
    sampler.begin(1, number, [5], constraint=COMPILER.compile(number))
    sampler.begin(2)
    one, letter = token_of("1"), token_of("b")
    logits = torch.zeros(2, 3, VOCAB)
    paths = torch.tensor([[[-1, -1], [one, -1], [letter, one]]]).expand(2, -1, -1)
    positions = torch.tensor([[1, 2, 3], [1, 2, 0]])
    processed = sampler.processed(logits, positions, torch.tensor([1, 2]), paths)
    assert torch.equal(processed[1], logits[1])
    finite = [set(row.isfinite().nonzero().flatten().tolist()) for row in processed[0]]
    numbers = {i for i, text in enumerate(TEXTS) if text.isascii() and text.isdigit()}
    assert finite[0] <= numbers and one in finite[0] and letter not in finite[0]
    assert {one, letter} <= finite[1] and finite[2] == {STOP}
    sampler.end(1)
    assert not sampler.is_constrained
    assert torch.equal(sampler.processed(logits, positions, torch.tensor([1, 2]), paths), logits)


def test_an_object_is_a_schema_too() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    assert allowed(constraint_of(json_schema=schema)) == allowed(
        constraint_of(json_schema=json.dumps(schema))
    )


@pytest.mark.parametrize(
    "structure",
    [
        {"choices": tuple(f"value {i * 7919 % 1000003}" for i in range(50_000))},
        {"json_schema": {"enum": [f"value {i}" for i in range(50_000)]}},
        {"json_schema": {"type": "string", "maxLength": 10**6}},
        {"regex": "(a{1,1000}){1,1000}"},
        {"regex": "(.*a){30}"},
        {"grammar": 'start: a\na: a a | "x" | ""'},
    ],
)
def test_costly_forms_are_compiled_in_bounded_time(structure: dict[str, object]) -> None:
    started = time.process_time()
    assert allowed(constraint_of(**structure))
    assert time.process_time() - started < 5
