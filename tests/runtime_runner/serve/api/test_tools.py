"""Requests with tools, and answers with their calls, in the forms of the official client."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from eagle_aot.runtime_runner.serve.answer_stream import AnswerDelta
from eagle_aot.runtime_runner.serve.api.chat_answers import ChatAnswer
from eagle_aot.runtime_runner.serve.api.messages import ChatMessage
from eagle_aot.runtime_runner.serve.api.responses import ChatResponseBuilder
from eagle_aot.runtime_runner.serve.tool_calls.chat_format import FORMATS, REASONING
from eagle_aot.runtime_runner.serve.tool_calls.parser import AnswerParser
from support.chat_templates import PLAIN, TEMPLATES, byte_tokenizer, format_tokenizer
from support.full_service import MODEL, PASSED, FullService
from support.posts import post

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
STOP = {"type": "function", "function": {"name": "stop", "description": "Stops.", "strict": True}}
TOOLS = {"tools": [WEATHER, STOP]}
CALL = {"id": "a", "type": "function", "function": {"name": "stop", "arguments": "{}"}}
CUT_OFF = {"id": "a", "function": {"name": "f", "arguments": '{"a": 12'}}
DEEP = json.loads(400 * '{"items": ' + "1" + 400 * "}")
HELLO = [{"role": "user", "content": "Hi"}]
CALLED = [
    *HELLO,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "Done."},
]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """Return a choice of some tools, the last with more of its definition."""
    functions: list[dict[str, Any]] = [{"name": name} for name in names]
    for function in functions[-1:]:
        function["parameters"] = {"type": "object"}
    tools = [{"type": "function", "function": function} for function in functions]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def sent(body: dict[str, Any], service: FullService) -> Any:
    """Return the refusal of a request, None where it passed all checks."""
    answer = post(CHAT, json.dumps({"model": MODEL, "messages": HELLO} | body), service)
    if answer.status_code == PASSED:
        return None
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["message"]


@pytest.mark.parametrize(("body", "required", "names"), [
    (TOOLS, False, ["get_weather", "stop"]),
    (TOOLS | {"tool_choice": "auto", "parallel_tool_calls": False}, False, ["get_weather", "stop"]),
    (TOOLS | {"tool_choice": "required"}, True, ["get_weather", "stop"]),
    (TOOLS | {"tool_choice": {"type": "function", "function": {"name": "stop"}}}, True, ["stop"]),
    (TOOLS | {"tool_choice": allowed("auto", "stop")}, False, ["stop"]),
    (TOOLS | {"tool_choice": allowed("required", "stop")}, True, ["stop"]),
    (TOOLS | {"tool_choice": allowed("required", "get_weather", "stop", "stop")},
     True, ["get_weather", "stop"]),
    (TOOLS | {"tool_choice": "none"}, None, []),
    ({"tools": [], "tool_choice": "auto", "functions": None, "function_call": None}, None, []),
    ({"messages": CALLED, **TOOLS}, False, ["get_weather", "stop"]),
    ({"messages": CALLED}, None, []),
    ({"messages": [*HELLO, {"role": "assistant", "tool_calls": [CUT_OFF]}, CALLED[2]]}, None, []),
    (TOOLS | {"response_format": {"type": "json_object"}}, False, ["get_weather", "stop"]),
])  # fmt: skip
@pytest.mark.parametrize("name", FORMATS)
def test_tools_hold_an_answer_to_a_grammar(
    name: str, body: dict[str, Any], required: bool | None, names: list[str]
) -> None:
    service = FullService(tokenizer=format_tokenizer(name))
    assert sent(body, service) is None
    ((_, params), *_) = service.requests[0].prompts
    if required is None:
        assert params.grammar is None
        return
    assert params.grammar is not None and params.json_schema is None
    assert [each in params.grammar for each in ("get_weather", "stop")] == [
        each in names for each in ("get_weather", "stop")
    ]
    start = params.grammar.partition("\n")[0]
    any_text = "/(?s:.*)/" in start or "]>* (" in start
    assert any_text is (not required and "response_format" not in body)


@pytest.mark.parametrize(("body", "line"), [
    ({"tool_choice": "required"}, "tool_choice required: there are no tools"),
    (TOOLS | {"tool_choice": {"type": "function", "function": {"name": "x"}}},
     "tool_choice: no tool has the name x"),
    (TOOLS | {"tool_choice": allowed("auto", "stop", "x")}, "tool_choice: no tool has the name x"),
    (TOOLS | {"tool_choice": allowed("none", "stop")},
     "tool_choice.allowed_tools.mode: Invalid enum value 'none'"),
    (TOOLS | {"tool_choice": allowed("auto")},
     "tool_choice.allowed_tools.tools: "),
    ({"tools": [STOP, STOP]}, "tools: two functions have the same name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]},
     "tools.0.function.name: Expected str matching regex"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type: Invalid value 'web_search'"),
    ({"tool_choice": "any"}, "tool_choice: "),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
     "tools: a schema is nested too deeply"),
    ({"chat_template_kwargs": DEEP}, "chat_template_kwargs: nested too deeply"),
    ({"messages": [{"role": "user"}]}, "messages: a turn of the user has no content"),
])  # fmt: skip
def test_wrong_tools_are_refused_in_one_line(body: dict[str, Any], line: str) -> None:
    assert sent(body, FullService(tokenizer=format_tokenizer("hermes"))).startswith(line)


def test_a_template_without_tools_is_refused_or_has_them_in_the_systems_text() -> None:
    tokenizer = byte_tokenizer(PLAIN)
    for body in (TOOLS, {"messages": CALLED}):
        assert "knows none: start with --tool-call-parser hermes" in sent(
            body, FullService(tokenizer=tokenizer)
        )
        service = FullService(tokenizer=tokenizer, tool_call_parser="hermes")
        assert sent(body, service) is None
    chat = service.model.chat
    turns = [message.message() for message in msgspec.convert(CALLED, list[ChatMessage])]
    system, user, assistant, tool = chat.messages(turns, [WEATHER])
    assert system["role"] == "system" and json.dumps(WEATHER) in system["content"]
    assert (user, tool["role"]) == (HELLO[0], "user")
    assert assistant["content"] == '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    assert "Done." in tool["content"]
    unread = byte_tokenizer(TEMPLATES["hermes"].replace("<tool_call>", "[CALL]"))
    assert "in a form that is not read here" in sent(TOOLS, FullService(tokenizer=unread))


@pytest.mark.parametrize(("options", "values"), [
    ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ({"reasoning_effort": "none"}, {"enable_thinking": False}),
    ({"reasoning_effort": "high"}, {"enable_thinking": True}),
    (TOOLS, {"tools": 2}),
    (TOOLS | {"tool_choice": allowed("auto", "stop")}, {"tools": 2}),
    (TOOLS | {"tool_choice": "none"}, {}),
])  # fmt: skip
def test_the_template_gets_its_values(options: dict[str, Any], values: dict[str, Any]) -> None:
    service, seen = FullService(tokenizer=format_tokenizer("hermes")), list[Any]()
    read = service.model.read

    async def spy(prompt: Any, *, raw: bool, template_values: Any) -> Any:
        seen.append(template_values)
        return await read(prompt, raw=raw)

    service.model.read = spy
    assert sent(options, service) is None
    assert {k: len(v) if k == "tools" else v for k, v in seen[0].items()} == values


TEXT = (
    '<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city": "Rome"}}\n</tool_call>\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
)


def builder() -> ChatResponseBuilder:
    answer = ChatAnswer(AnswerParser(FORMATS["hermes"], [], REASONING[1]))
    bytes_of: Any = None
    return ChatResponseBuilder(
        model=MODEL, fingerprint="x", bytes_of=bytes_of, prompts=[[1]], answers={0: answer}
    )


def result(text: str, reason: str = "stop") -> Any:
    stats = SimpleNamespace(rounds=0, drafted=0, accepted=0, emitted=0)
    return SimpleNamespace(
        text=text, finish_reason=reason, parameters=SimpleNamespace(seed=1), token_ids=[1, 2],
        prompt_tokens=1, cached_tokens=0, stats=stats, logprobs=None, prompt_logprobs=None,
    )  # fmt: skip


def test_an_answer_with_calls() -> None:
    full = ChatCompletion.model_validate(builder().full([result(TEXT)]), strict=True)
    (choice,) = full.choices
    message = choice.message
    assert choice.finish_reason == "tool_calls" and message.content == "Let me see."
    assert message.model_extra == {"reasoning_content": "Hm."}
    calls = message.tool_calls or []
    functions = [call.function for call in calls if call.type == "function"]
    assert [(f.name, f.arguments) for f in functions] == [
        ("get_weather", '{"city": "Rome"}'), ("stop", "{}")
    ]  # fmt: skip
    assert len({call.id for call in calls}) == 2
    only = builder().full([result(TEXT[TEXT.index("<tool_call>") :], "length")])["choices"][0]
    assert only["message"]["content"] is None and only["finish_reason"] == "length"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_stream_of_calls(size: int) -> None:
    """A call begins with its index, id and name and no arguments; then they come in parts."""
    made = builder()
    pieces = [AnswerDelta(TEXT[i : i + size], {}) for i in range(0, len(TEXT), size)]
    chunks = [chunk for piece in pieces for chunk in made.chunks(0, piece)]
    chunks += made.last_chunks(0, result(TEXT))
    choices = [ChatCompletionChunk.model_validate(c, strict=True).choices[0] for c in chunks]
    assert choices[-1].finish_reason == "tool_calls"
    assert "".join(c.delta.content or "" for c in choices) == "Let me see."
    entries = [entry for choice in choices for entry in choice.delta.tool_calls or []]
    for index, (name, arguments) in enumerate([("get_weather", {"city": "Rome"}), ("stop", {})]):
        first, *others = [entry for entry in entries if entry.index == index]
        assert first.function and (first.function.name, first.function.arguments) == (name, "")
        assert first.id and first.type == "function"
        assert all(o.id is None and o.function and o.function.name is None for o in others)
        text = "".join(o.function.arguments or "" for o in others if o.function)
        assert json.loads(text) == arguments
