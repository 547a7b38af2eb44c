"""Each format reads the calls that its chat template writes, and its grammar lets through these and
no others.

The template is the oracle: it writes arguments that Hypothesis draws. jsonschema judges arguments
that random tokens of a grammar make.
"""

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from eagle_aot.common.prompts import Message, user
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.serve.tool_calls.chat_format import FORMATS, CallPolicy, ChatFormat
from eagle_aot.runtime_runner.serve.tool_calls.parser import AnswerParser
from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    AnswerEvent,
    CallArguments,
    CallBegin,
    Content,
    Function,
    Reasoning,
)
from support.chat_templates import END, TEMPLATES, byte_tokenizer, format_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "place": {
            "type": "object",
            "properties": {"lat": {"type": ["number", "null"]}, "name": {"type": "string"}},
            "required": ["lat"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "open": {"type": "boolean"},
    },
    "required": ["city", "place"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = [Function("get_weather", SCHEMA, strict=True), Function("stop", NOTHING, strict=True)]
TOKENIZERS = {name: format_tokenizer(name) for name in FORMATS} | {
    "hermes of texts": byte_tokenizer(TEMPLATES["hermes"])
}
CHATS = {name: ChatFormat(tokenizer) for name, tokenizer in TOKENIZERS.items()}
LETTERS = st.characters(
    exclude_categories=["Cs", "Cc"], exclude_characters="<>", include_characters="\n"
)
TEXT = st.text(LETTERS, max_size=8)
ARGUMENTS = st.fixed_dictionaries(
    {
        "city": TEXT,
        "place": st.fixed_dictionaries(
            {"lat": st.none() | st.integers() | st.sampled_from([0.5, -12.25])},
            optional={"name": TEXT},
        ),
    },
    optional={
        "days": st.integers(),
        "unit": st.sampled_from(["C", "F"]),
        "tags": st.lists(TEXT, max_size=2),
        "open": st.booleans(),
    },
)
CALLS = st.lists(
    st.tuples(st.just("get_weather"), ARGUMENTS) | st.just(("stop", {})), min_size=1, max_size=3
)
Calls = list[tuple[str, dict[str, Any]]]


def written(tokenizer: Tokenizer, calls: Calls) -> str:
    """Return the text that a template writes for calls."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    turn: Any = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": f} for f in functions],
    }
    messages: list[Message] = [user("Hi"), turn]
    text = tokenizer.render(messages, add_generation_prompt=False)
    return text.rsplit("<|im_start|>assistant\n", 1)[1].removesuffix(END)


def collected(events: list[AnswerEvent]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return reasoning, content, and calls with their arguments as texts."""
    calls: list[tuple[str, str]] = []
    texts = {Reasoning: "", Content: ""}
    for event in events:
        if isinstance(event, CallBegin):
            assert event.number == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            name, arguments = calls[event.number]
            calls[event.number] = name, arguments + event.text
        else:
            texts[type(event)] += event.text
    return texts[Reasoning], texts[Content], calls


def read(parser: AnswerParser, parts: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    events = [event for part in parts for event in parser.feed(part)]
    return collected([*events, *parser.finish()])


def parts_of(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


def policy(name: str, *, required: bool = True) -> CallPolicy:
    return CallPolicy(FUNCTIONS, required, several=name != "llama3_json")


def parser_of(name: str, prompt: str = "x") -> AnswerParser:
    tokens = TOKENIZERS[name].ids(prompt)
    return CHATS[name].parser(tokens, policy(name))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(calls=CALLS, before=TEXT, cuts=st.lists(st.integers(0, 10**6), max_size=40))
@settings(deadline=None, max_examples=60)
def test_calls_are_read_as_the_template_wrote_them(
    name: str, calls: Calls, before: str, cuts: list[int]
) -> None:
    """In parts of any lengths, after text, and with texts that have quotes, commas and brackets."""
    if name == "llama3_json":  # one call, at the begin
        calls, before = calls[:1], ""
    text = before + "\n".join(written(TOKENIZERS[name], [call]) for call in calls)
    whole = read(parser_of(name), [text])
    assert read(parser_of(name), parts_of(text, cuts)) == whole
    assert read(parser_of(name), [*text]) == whole
    _, content, found = whole
    assert content == before.rstrip()
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text("<tool_call>/|{}\"':n ame=func\n,\\", max_size=80), cuts=st.lists(
    st.integers(0, 99), max_size=20))  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_any_text_is_read_alike_in_parts(name: str, text: str, cuts: list[int]) -> None:
    """Also where it is no call, or half of one; what is no call is content."""
    for begin in ("", FORMATS[name.partition(" ")[0]].begin):
        whole = read(parser_of(name), [begin + text])
        assert read(parser_of(name), parts_of(begin + text, cuts)) == whole
        if not whole[2]:
            assert whole[1] == begin + text


def matcher(name: str, grammar: str | None, directory: Path) -> LLMatcher:
    tokenizer = TOKENIZERS[name]
    path = directory / f"{name}.json"
    tokenizer.backend.save(str(path))
    vocabulary = tokenizer.backend.get_vocab_size()
    reader = LLTokenizer(str(path), n_vocab=vocabulary, eos_token=[tokenizer.added_ids[END]])
    text = str(grammar)
    made = LLMatcher(reader, text if text[0] == "{" else LLMatcher.grammar_from_lark(text))
    assert not made.is_error(), made.get_error()
    return made


def grammar(name: str, prompt: str = "x", *, required: bool = True, **form: Any) -> str | None:
    params = GenerationParams(**form)
    tokens = TOKENIZERS[name].ids(prompt)
    return CHATS[name].parameters(params, tokens, policy(name, required=required)).grammar


def accepts(made: LLMatcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text is complete; the matcher is as new afterwards."""
    ids = tokenizer.ids(text)
    count = made.try_consume_tokens(ids)
    ended = count == len(ids) and made.is_accepting()
    made.rollback(count)
    return ended


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_the_grammar_accepts_what_the_template_writes(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With "required" nothing but calls, with "auto" text and calls. Arguments are in the order of
    the schema."""
    tokenizer = TOKENIZERS[name]
    directory = tmp_path_factory.getbasetemp()
    calls = [(f, in_order(a)) for f, a in data.draw(CALLS)][: 1 if name == "llama3_json" else 3]
    separator = FORMATS[name.partition(" ")[0]].separator
    text = separator.join(written(tokenizer, [call]) for call in calls)
    reason = "\nI see.\n</think>\n\n" if name != "gemma4" else "I see.<channel|>"
    begun, prompt = ("<think>", "<think>\n") if name != "gemma4" else ("<|channel>thought\n",) * 2
    for required in (True, False):
        made = matcher(name, grammar(name, required=required), directory)
        assert accepts(made, tokenizer, text)
        assert accepts(made, tokenizer, "Hello {x} <b>.") is not required
        if name != "llama3_json":
            assert accepts(made, tokenizer, "Hello. " + text) is not required
            assert accepts(made, tokenizer, begun + reason + text)
            opened = matcher(name, grammar(name, prompt, required=required), directory)
            assert accepts(opened, tokenizer, reason + text)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_text_without_a_call_may_have_any_token(name: str, tmp_path: Path) -> None:
    """Special ones, too; where the begin is no token, text has whole characters. After the begin of
    a call there is no way but a call."""
    tokenizer, form = TOKENIZERS[name], FORMATS[name.partition(" ")[0]]
    made = matcher(name, grammar(name, required=False), tmp_path)
    tokens = {*range(tokenizer.backend.get_vocab_size())}
    if form.begin not in tokenizer.added_ids:
        tokens = {token for token in tokens if "\ufffd" not in tokenizer.decode([token], False)}
    for token in tokens - {tokenizer.added_ids.get(form.begin), tokenizer.added_ids[END]}:
        consumed = made.try_consume_tokens([40, token, 41])
        assert consumed == 3 and made.is_accepting(), tokenizer.word(token)
        made.rollback(consumed)
    for text in (form.begin, f"Hi {form.begin}" if form.follows_text else form.begin):
        ids = tokenizer.ids(text)
        consumed = made.try_consume_tokens(ids)
        assert consumed == len(ids) and not made.is_accepting()
        mask = made.compute_bitmask()
        assert sum(bits.bit_count() for bits in mask) <= 2
        made.rollback(consumed)


def in_order(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments in the order of the schema's properties."""
    ordered = {key: arguments[key] for key in SCHEMA["properties"] if key in arguments}
    for place in filter(None, [ordered.get("place")]):
        ordered["place"] = {key: place[key] for key in ("lat", "name") if key in place}
    return ordered


@pytest.mark.parametrize("name", TOKENIZERS)
def test_random_tokens_of_the_grammar_are_calls_of_the_schema(name: str, tmp_path: Path) -> None:
    tokenizer, generator = TOKENIZERS[name], random.Random(0)
    made = matcher(name, grammar(name), tmp_path)
    end, seen = tokenizer.added_ids[END], set[str]()
    count = tokenizer.backend.get_vocab_size()
    endings = [tokenizer.ids(text) for text in ('"', "}", "]", '<|"|>', "\n</parameter>\n")]
    for _ in range(30):
        made.reset()
        ids = list[int]()
        while len(ids) < 1000 and ids[-1:] != [end]:
            for ending in endings:  # which random tokens seldom are
                consumed = made.try_consume_tokens(ending)
                if consumed == len(ending) and generator.random() < 0.3:
                    ids += ending
                else:
                    made.rollback(consumed)
            mask = made.compute_bitmask()
            allowed = [i for i in range(count) if mask[i // 8] >> (i % 8) & 1]
            ids.append(generator.choice(allowed))
            assert made.consume_token(ids[-1])
        if ids[-1] != end:
            continue
        text = tokenizer.decode(ids[:-1], skip_special_tokens=False)
        _, content, calls = read(parser_of(name), [text])
        assert calls and not content
        for function, arguments in calls:
            seen.add(function)
            schema = next(f.schema for f in FUNCTIONS if f.name == function)
            jsonschema.validate(json.loads(arguments), schema)
    assert seen == {"get_weather", "stop"}


@pytest.mark.parametrize("name", FORMATS)
def test_a_template_says_which_format_it_has(name: str) -> None:
    assert ChatFormat(TOKENIZERS[name])._calls is FORMATS[name]


@pytest.mark.parametrize(("text", "call"), [
    ('<tool_call>{"name":"f","arguments":{"a":[{"b":"}\\""}]}}</tool_call>',
     ("f", '{"a":[{"b":"}\\""}]}')),
    ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', ("f", '{"a": 1}')),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("f", '{"a": 1}')),
    ('<tool_call>\n{"name": "f"}\n</tool_call>', ("f", "{}")),
    ('<tool_call>{"arguments": {"a": 1}, "name": "f"}', ("f", '{"a": 1}')),
])  # fmt: skip
def test_other_spellings_of_hermes_calls(text: str, call: tuple[str, str]) -> None:
    """Without a grammar models write these, too: another order, JSON in a text, no end."""
    for parts in ([text], [*text]):
        assert read(AnswerParser(FORMATS["hermes"], FUNCTIONS), parts) == ("", "", [call])


@pytest.mark.parametrize(("rest", "content"), [
    ("\n<tool", ""), ("\n<tool_call>", ""), ('\n<tool_call>\n{"na', ""), ("\nDone", "Done"),
])  # fmt: skip
def test_half_a_call_after_another_is_no_content(rest: str, content: str) -> None:
    """An answer may be cut off anywhere."""
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    for parts in ([call + rest], [*call, *rest]):
        parser = AnswerParser(FORMATS["hermes"], FUNCTIONS)
        assert read(parser, parts) == ("", content, [("f", "{}")])


@pytest.mark.parametrize(("text", "content", "calls"), [
    ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "",
     [("f", "{}"), ("g", "{}")]),
    ('{"answer": 42}', '{"answer": 42}', []),
    ('Say {"name": "f", "parameters": {}}', 'Say {"name": "f", "parameters": {}}', []),
])  # fmt: skip
def test_answers_of_llama(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for parts in ([text], [*text]):
        assert read(AnswerParser(FORMATS["llama3_json"], FUNCTIONS), parts) == ("", content, calls)


@pytest.mark.parametrize(("text", "arguments"), [
    ("{a:<|\"|>x, {y}: [1]<|\"|>,b:[],c:{},d:null}",
     {"a": "x, {y}: [1]", "b": [], "c": {}, "d": None}),
    ('{<|"|>a b<|"|>: 1, c: [ 1 , <|"|>"<|"|> ], d: word}',
     {"a b": 1, "c": [1, '"'], "d": "word"}),
    ('{a:"x\\"y",b:[[1],[{c:-2.5e3}]]}', {"a": 'x"y', "b": [[1], [{"c": -2500.0}]]}),
])  # fmt: skip
def test_arguments_of_gemma(text: str, arguments: dict[str, Any]) -> None:
    call = f"<|tool_call>call:f{text}<tool_call|>"
    for parts in ([call], [*call]):
        _, content, calls = read(AnswerParser(FORMATS["gemma4"], FUNCTIONS), parts)
        ((name, written_arguments),) = calls
        assert (name, content, json.loads(written_arguments)) == ("f", "", arguments)


@pytest.mark.parametrize(("prompt", "text", "reasoning", "content"), [
    ("<|im_start|>assistant\n", "<think>\nWell.\n\n</think>\n\nYes.\n", "Well.", "Yes.\n"),
    ("<|im_start|>assistant\n", "Yes <think> no.", "", "Yes <think> no."),
    ("<|im_start|>assistant\n", " <thi", "", " <thi"),
    ("<think>\n", "Well.\n</think>\n\nYes.", "Well.", "Yes."),
    ("<think>\n", "Well", "Well", ""),
    ("<think>\n\n</think>\n\n", "Yes </think>", "", "Yes </think>"),
])  # fmt: skip
def test_reasoning_is_split_off(prompt: str, text: str, reasoning: str, content: str) -> None:
    for parts in ([text], [*text], re.split("(?<=[<>])", text)):
        assert read(parser_of("hermes", prompt), parts) == (reasoning, content, [])


@pytest.mark.parametrize(("form", "text", "wrong"), [
    ({"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                      "additionalProperties": False}}, '{"a": 1}', '{"b": 1}'),
    ({"regex": r"[a/\]]+\/\n"}, "a/]/\n", "b"),
    ({"choices": ["yes", 'n"o']}, 'n"o', "perhaps"),
    ({"grammar": 'start: "a" b\nb: /b+/'}, "abb", "b"),
])  # fmt: skip
def test_a_form_begins_after_the_reasoning(
    form: dict[str, Any], text: str, wrong: str, tmp_path: Path
) -> None:
    """Where the answer continues reasoning or may begin with it; with tools, calls are possible
    instead."""
    tokenizer, chat = TOKENIZERS["hermes"], CHATS["hermes"]
    params = GenerationParams(**form)
    for prompt, before in (("<think>", "hm</think>\n\n"), ("x", "<think>hm</think>"), ("x", "")):
        held = chat.parameters(params, tokenizer.ids(prompt), None)
        made = matcher("hermes", held.grammar, tmp_path)
        assert accepts(made, tokenizer, before + text)
        assert not accepts(made, tokenizer, before + wrong)
    assert chat.parameters(params, tokenizer.ids("</think>\n"), None) == params
    made = matcher("hermes", grammar("hermes", required=False, **form), tmp_path)
    call = written(tokenizer, [("stop", {})])
    assert accepts(made, tokenizer, text) and accepts(made, tokenizer, call)
    assert not accepts(made, tokenizer, wrong)
