"""Which tokens a constraint forbids, compared with what the texts of all tokens would add."""

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import llguidance
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.runtime_runner.sampling.constraint import (
    CompiledForm,
    Constraint,
    ConstraintError,
    DraftRows,
    GrammarCompiler,
    LLGuidanceConstraint,
)
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.runtime_runner.sampling.token_masks import CALM, FORCED, UNLIKELY, pack_rows

ROOT = Path(__file__).parents[3]
VOCABULARY = ROOT / "targets" / "tiny" / "target" / "tokenizer.json"
TOKENIZER = Tokenizer.from_file(str(VOCABULARY))
VOCAB = TOKENIZER.get_vocab_size() + 8
"""With ids that no token has."""
STOP = 1
WIDTH, UNTOUCHED = -(-VOCAB // 32) * 4, 0b01010101
LLTOKENIZER = llguidance.LLTokenizer(str(VOCABULARY), n_vocab=VOCAB, eos_token=[STOP])
COMPILER = GrammarCompiler(VOCABULARY, VOCAB, [STOP])
TEXTS = [TOKENIZER.decode([i], skip_special_tokens=False) for i in range(VOCAB)]
SPECIAL = {i for i, t in TOKENIZER.get_added_tokens_decoder().items() if t.special}


def token_of(character: str) -> int:
    (token,) = TOKENIZER.encode(character, add_special_tokens=False).ids
    return token


def constraint_of(**fields: object) -> Constraint:
    structure = SamplingParams(**fields).structure  # type: ignore[arg-type]
    assert structure is not None
    return COMPILER.compile(*structure)


def chain_of(path: Iterable[int]) -> DraftRows:
    """Return a row after the answer, and a row after each of the drafts of a path."""
    tokens = [0, *path]
    return DraftRows(tokens, [[row] for row in range(1, len(tokens))] + [[]])


def masks(constraint: Constraint, rows: DraftRows) -> list[set[int] | None]:
    """Return the tokens that may follow each row, None where the mask is left as it was."""
    bitmask = torch.full((len(rows.tokens), WIDTH), UNTOUCHED, dtype=torch.uint8)
    constraint.fill(rows, bitmask)
    return [
        None if (row == UNTOUCHED).all()
        else {i for i in range(VOCAB) if int(row[i // 8]) >> i % 8 & 1}
        for row in bitmask
    ]  # fmt: skip


def allowed(constraint: Constraint, path: Iterable[int] = ()) -> set[int]:
    tokens = masks(constraint, chain_of(path))[-1]
    assert tokens is not None
    return tokens


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


@pytest.mark.parametrize("path, used", [(["b"], 1), (["1", "b"], 2), (["1", "b", "1"], 2)])
def test_rows_after_a_draft_that_cannot_come_have_no_mask(path: list[str], used: int) -> None:
    rows = chain_of(token_of(text) for text in path)
    found = masks(constraint_of(regex="[0-9]+a"), rows)
    assert all(found[:used]) and found[used:] == [None] * (len(path) + 1 - used)


def test_an_answer_goes_no_further_than_its_end() -> None:
    constraint = constraint_of(choices=("a",))
    letter = token_of("a")
    found = masks(constraint, chain_of([letter, STOP, letter]))
    assert found[:2] == [{letter}, {STOP}] and found[3] is None


def test_branches_of_a_tree_have_masks_of_their_own() -> None:
    one, a, b = map(token_of, "1ab")
    rows = DraftRows([0, a, one, b, a, one, b], [[1, 2], [3], [4, 5], [], [6], [], []])
    found = masks(constraint_of(regex="1(1|a)b|ab"), rows)
    assert found[0] == {a, one} and found[1] == {b} and found[3] == {STOP}
    assert found[2] == found[0] and found[4] == found[5] == {b} and found[6] == {STOP}


def test_tokens_that_must_come_replace_drafts_that_cannot() -> None:
    """The first of several children is replaced, unless another one is the token already."""
    constraint = constraint_of(choices=("ab1t", "ab1b"))
    one, a, b, t = map(token_of, "1abt")
    chain = chain_of([t, t, one, t])
    assert constraint.repair(chain) and chain.tokens[1:] == [a, b, one, t]
    assert not constraint.repair(chain)
    tree = DraftRows([0, b, a, t, one, t, a], [[1, 2], [], [3, 4], [5], [6], [], []])
    assert constraint.repair(tree) and tree.tokens[1:] == [b, a, b, one, one, a]
    assert allowed(constraint) == {a}  # the answer is where it was


COMPLEX_REGEX = "bc|a(.*a){12}(.*b){12}c"
"""After `a` nothing can be chosen with little fuel; the answer may still be `bc`."""


def form_with_little_fuel() -> CompiledForm:
    limits = llguidance.LLParserLimits(step_lexer_fuel=400, verbose_errors=False)
    grammar = llguidance.LLMatcher.grammar_from_regex(COMPLEX_REGEX)
    form = CompiledForm(COMPLEX_REGEX, grammar, LLTOKENIZER, limits)
    assert form.error is None
    return form


def test_a_draft_that_is_too_complex_does_not_end_an_answer() -> None:
    a, b, c = map(token_of, "abc")
    constraint = LLGuidanceConstraint(form_with_little_fuel())
    for children in ([1, 2], [2, 1]):  # the other branch is followed before and after
        rows = DraftRows([0, a, b, c], [children, [], [3], []])
        constraint.repair(rows)
        found = masks(constraint, rows)
        assert found[0] is not None and {a, b} <= found[0]
        assert found[2:] == [{c}, {STOP}]
    constraint.advance(b)
    assert allowed(constraint) == {c}
    failing = LLGuidanceConstraint(form_with_little_fuel())
    masks(failing, chain_of([a]))
    failing.advance(a)
    with pytest.raises(ConstraintError, match="the answer's form: lexer error"):
        failing.advance(a)
    with pytest.raises(ConstraintError, match="the answer's form: lexer error"):
        masks(plain := LLGuidanceConstraint(form_with_little_fuel()), chain_of([]))
        plain.advance(a)
        masks(plain, chain_of([]))
        plain.advance(a)


@pytest.mark.parametrize("when", range(6))
def test_an_answer_that_is_too_complex_does_not_end_another_one(when: int) -> None:
    """Two answers share a form, and one fails before any step of the other."""
    a, b, c = map(token_of, "abc")
    form = form_with_little_fuel()
    failing, answer = LLGuidanceConstraint(form), LLGuidanceConstraint(form)
    chain, found = chain_of([b, c]), list[object]()
    steps: list[Callable[[], object]] = [
        lambda: answer.look_ahead(torch.zeros(WIDTH, dtype=torch.uint8)),
        lambda: answer.repair(chain),
        lambda: masks(answer, chain)[1:],
        lambda: answer.advance(b),
        lambda: allowed(answer),
        lambda: answer.advance(c),
    ]
    for number, step in enumerate(steps):
        if number == when:
            failing.advance(a)
            assert allowed(failing)  # some mask, of a token that is an error
            with pytest.raises(ConstraintError, match="lexer error"):
                failing.advance(a)
        found.append(step())
    assert found == [[], False, [{c}, {STOP}], None, {c}, None]
    assert allowed(answer) == {STOP} and allowed(LLGuidanceConstraint(form)) >= {a, b}


def test_answers_to_one_request_share_a_form_while_they_are_there() -> None:
    compiler = GrammarCompiler(VOCABULARY, VOCAB, [STOP])
    schema: dict[str, Any] = {"enum": [f"v {i}" for i in range(20_000)]}

    def seconds(value: object) -> tuple[float, Constraint]:
        started = time.process_time()
        constraint = compiler.compile("json_schema", value)
        return time.process_time() - started, constraint

    first, kept = seconds(schema)
    times, answers = zip(*(seconds(schema) for _ in range(20)), strict=True)
    assert sum(times) < 20 * first / 4
    assert len({id(answer) for answer in answers}) == 20
    answers[0].advance(token_of('"'))
    assert allowed(answers[1]) == allowed(kept) != allowed(answers[0])
    schema["enum"] = [1]
    assert allowed(compiler.compile("json_schema", schema)) == {token_of("1")}
    assert allowed(compiler.compile("json_schema", {"enum": [2]})) == {token_of("2")}
    del kept, answers
    assert not compiler._forms


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
    sampler.begin(1, number, [5], constraint=constraint_of(regex="[0-9]+b"))
    sampler.begin(2)
    one, letter = token_of("1"), token_of("b")
    logits = torch.zeros(2, 3, VOCAB)
    tokens = torch.tensor([[0, one, letter]]).repeat(2, 1)
    sequences, positions = torch.tensor([1, 2]), torch.tensor([[0, 1, 2], [0, 1, -1]])
    packed = pack_rows(sequences, tokens, positions, torch.tensor([[0, 0, 1]]).repeat(2, 1))
    sampler.masks.fill(sampler.masks.follow(packed, tokens))
    processed = sampler.processed(logits, positions + 1, sequences)
    assert torch.equal(processed[1], logits[1])
    finite = [set(row.isfinite().nonzero().flatten().tolist()) for row in processed[0]]
    numbers = {i for i, text in enumerate(TEXTS) if text.isascii() and text.isdigit()}
    assert finite[0] <= numbers and one in finite[0] and letter not in finite[0]
    assert {one, letter} <= finite[1] and finite[2] == {STOP}
    sampler.end(1)
    assert not sampler.is_constrained
    assert torch.equal(sampler.processed(logits, positions, sequences), logits)


def test_drafts_that_are_verified_already_are_not_replaced() -> None:
    """After some rounds without a draft to replace no round waits, until one would have had one."""
    sampler = Sampler(1, "cpu", 16, VOCAB)
    sampler.begin(0, SamplingParams(regex="a1b*"), [5], constraint=constraint_of(regex="a1b*"))
    masks, a, b, one = sampler.masks, *map(token_of, "ab1")
    sequences, positions = torch.tensor([0]), torch.tensor([[0, 1, 2]])

    def follow(*drafts: int, is_replaced: bool) -> list[int]:
        tokens = torch.tensor([[0, *drafts]])
        packed = pack_rows(sequences, tokens, positions, torch.tensor([[0, 0, 1]]))
        ((_, rows),) = masks.follow(packed, tokens if is_replaced else None)
        assert rows.tokens == tokens[0].tolist()
        return rows.tokens[1:]

    assert follow(b, b, is_replaced=True) == [a, one]
    for _ in range(CALM):
        assert masks.replaces_drafts
        assert follow(a, one, is_replaced=True) == [a, one]
    assert not masks.replaces_drafts
    assert follow(a, b, is_replaced=False) == [a, b]
    assert masks.replaces_drafts


@pytest.mark.parametrize("reduced", [False, True])
def test_the_first_draft_is_allowed_and_forced_ones_are_known(reduced: bool) -> None:
    """Sequence 1 has a choice of two tokens, 2 none for two tokens, 0 no constraint."""
    sampler = Sampler(3, "cpu", 16, VOCAB)
    one, a, b = map(token_of, "1ab")
    sampler.begin(0)
    for sequence, regex in ((1, "1|a"), (2, "(ab|ab1)")):
        params = SamplingParams(regex=regex)
        sampler.begin(sequence, params, [5], constraint=constraint_of(regex=regex))
    sampler.masks.look_ahead()
    ids = torch.tensor([b, one, a]) if reduced else None
    columns = [b, one, a] if reduced else list(range(VOCAB))
    logits = torch.arange(3.0 * 2 * len(columns)).view(3, 2, -1)
    sequences = torch.tensor([2, 0, 1])
    masked = sampler.masks.masked_first(logits, sequences, ids)
    assert torch.equal(masked[:, 1], logits[:, 1]) and torch.equal(masked[1], logits[1])
    found = [{columns[i] for i in (row > UNLIKELY).nonzero().flatten()} for row in masked[:, 0]]
    assert found[0] == {a} and found[2] == {one, a} and masked.isfinite().all()
    drafts = torch.full((3, 1), 7)
    forced = [sampler.masks.forced(drafts, depth, sequences) for depth in (0, 1, 2, FORCED)]
    assert torch.cat(forced, dim=1).tolist() == [[a, b, 7, 7], [7] * 4, [7] * 4]
    assert constraint_of(regex="ab1?").look_ahead(None) == [a, b]


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


OF_ITSELF = {
    "type": "object",
    "properties": {"v": {"$ref": "#"}},
    "required": ["v"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({"enum": [f"{i:05d}" for i in range(100_000)]}, "initial lexer configuration"),
        ({"enum": [*range(100_000)]}, "initial lexer configuration"),
        ({"enum": [f"value {i}" for i in range(100_000)]}, "1488900 characters: at most 1000000"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable schema"),
        ({"enum": []}, "Unsatisfiable schema"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable schema"),
        ({"type": "string", "pattern": "^a$", "minLength": 3}, "Unsatisfiable schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, ""),
        ({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(20_000)}},
         "schema too large"),
        ({"allOf": [{"anyOf": [{"properties": {f"{n}{i}": {"const": i}}} for n in "ab"]}
                    for i in range(30)]}, "schema too large"),
        ({"const": "ab" * 200_000}, "more than 2048 tokens of fixed text follow"),
        (OF_ITSELF, "more than 2048 tokens of fixed text follow"),
    ],
)  # fmt: skip
def test_forms_that_cannot_be_written_are_refused_in_bounded_time_and_memory(
    schema: dict[str, object], line: str
) -> None:
    started, before = time.process_time(), resident_bytes()
    with pytest.raises(SettingError) as error:
        constraint_of(json_schema=schema)
    assert str(error.value).startswith(f"json_schema: {line}") and "\n" not in str(error.value)
    assert time.process_time() - started < 5 and resident_bytes() - before < 300 << 20


def resident_bytes() -> int:
    """Return the memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("rest", [{"const": "ab" * 100_000}, OF_ITSELF | {"$id": "rest"}])
def test_fixed_text_of_any_length_in_an_answer_ends_it_in_bounded_time(
    rest: dict[str, object],
) -> None:
    """Plain and drafted, at the same token."""
    array = {"type": "array", "prefixItems": [rest], "minItems": 1}
    form = constraint_of(json_schema={"anyOf": [{"const": 1}, array]})
    bracket, other = token_of("["), token_of("1")
    started = time.process_time()
    assert {bracket, other} <= allowed(form) and form.look_ahead(None) == []
    rows = DraftRows([0, bracket, token_of("a"), other], [[1, 3], [2], [], []])
    form.repair(rows)
    found = masks(form, rows)
    assert found[1:] == [None, None, {STOP}]
    form.advance(bracket)
    with pytest.raises(ConstraintError, match="form: more than 2048 tokens of fixed text follow"):
        form.advance(token_of('"'))
    assert time.process_time() - started < 5
