"""Names in a request's body: which are read, translated, refused, or ignored with a warning."""

import json
import logging
from typing import Any

import msgspec
import pytest

from eagle_aot.runtime_runner.serve.api.bodies import BodyReader, decode
from eagle_aot.runtime_runner.serve.api.errors import ApiError
from eagle_aot.runtime_runner.serve.api.fields import (
    ALIASES,
    IGNORED,
    LONGEST_NAME,
    MOST_LINES,
    REFUSED,
    fields_of,
)
from eagle_aot.runtime_runner.serve.api.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
)
from support.full_service import MODEL, FullService

KINDS: dict[str, type[GenerationRequest]] = {
    "prompt": CompletionRequest,
    "messages": ChatCompletionRequest,
}
TURN = {"role": "user", "content": "a"}
PROMPTS: dict[str, Any] = {"prompt": "a", "messages": [TURN]}


def read(body: dict[str, Any], *, strict: bool = False) -> tuple[GenerationRequest, list[str]]:
    """Return the request in a body, and its warnings; the endpoint follows from the prompt."""
    (kind,) = (KINDS[name] for name in KINDS if name in body)
    return decode(json.dumps(body).encode(), kind, strict=strict)


def same(kind: str, first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether two bodies are the same request, without warnings."""
    (left, lines), (right, others) = (read({kind: PROMPTS[kind], **b}) for b in (first, second))
    assert lines == others == []
    return left == right


@pytest.mark.parametrize("kind", PROMPTS)
def test_null_is_absent_for_every_name(kind: str) -> None:
    names = [*fields_of(KINDS[kind]), *ALIASES, *REFUSED, *IGNORED, "no_such", "service_tier"]
    body = dict.fromkeys(names) | {kind: PROMPTS[kind]}
    assert read(body, strict=True)[0] == read({kind: PROMPTS[kind]})[0]
    turn = TURN | dict.fromkeys(("name", "refusal", "annotations", "audio", "tool_calls", "x"))
    nested = {"messages": [turn], "stream_options": {"include_usage": None, "x": None}}
    plain = {"messages": [TURN], "stream_options": {}}
    assert read(nested, strict=True)[0] == read(plain)[0]


def test_null_in_a_schema_stays() -> None:
    schema = {"enum": [None, 1], "default": None}
    form = {"type": "json_schema", "json_schema": {"name": None, "schema": schema}}
    request, _ = read({"prompt": "a", "response_format": form})
    assert request.form == {"json_schema": schema}


@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize(("sent", "meant"), [
    ({"n_predict": 7}, {"max_tokens": 7}),
    ({"repeat_penalty": 1.25}, {"repetition_penalty": 1.25}),
    ({"seed": -1}, {}),
    ({"n_predict": -1}, {"max_tokens": -1}),
    ({"max_tokens": 7, "n_predict": 7}, {"max_tokens": 7}),
    ({"guided_json": {"type": "null"}}, {"structured_outputs": {"json": {"type": "null"}}}),
    ({"json_schema": {"type": "null"}}, {"structured_outputs": {"json": {"type": "null"}}}),
    ({"guided_regex": "a"}, {"structured_outputs": {"regex": "a"}}),
    ({"guided_choice": ["a"]}, {"structured_outputs": {"choice": ["a"]}}),
    ({"guided_grammar": "start: /a/"}, {"structured_outputs": {"grammar": "start: /a/"}}),
    ({"grammar": "start: /a/"}, {"structured_outputs": {"grammar": "start: /a/"}}),
    ({"top_p": 0}, {"temperature": 0}),
    ({"top_p": 0.0, "temperature": 3}, {"temperature": 0}),
    ({"stop": ""}, {}),
    ({"logprobs": False}, {}),
    ({"tools": [], "best_of": 1, "store": False, "mirostat": 0, "typical_p": 1.0}, {}),
    ({"metadata": {"a": "b"}, "user": "u", "cache_prompt": True, "service_tier": "auto"}, {}),
    ({"repeat_last_n": 64, "repeat_penalty": 1.0}, {"repetition_penalty": 1}),
    ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, {"regex": "a"}),
    ({"mirostat_tau": 5.0, "dry_base": 1.75, "xtc_threshold": 0.1}, {}),
])  # fmt: skip
def test_other_servers_names_and_what_changes_nothing(
    kind: str, sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert same(kind, sent, meant)


def test_parts_of_the_newer_api_are_texts() -> None:
    parts = [{"type": "input_text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    request, warnings = read({"messages": [TURN | {"content": parts}]})
    assert request.prompts() == [[TURN]] and warnings == []


def test_a_low_temperature_is_greedy_and_said_to_be() -> None:
    request, warnings = read({"prompt": "a", "temperature": 0.001})
    (params,) = request.parameters(64, "")
    assert params.temperature == 0
    assert warnings == ["temperature: 0 in place of 0.001"]
    assert read({"prompt": "a", "temperature": 0.01})[1] == []


@pytest.mark.parametrize(("body", "line"), [
    ({"typical_p": 0.5}, "typical_p: cannot be done here: leave it out"),
    ({"mirostat": 2}, "mirostat: cannot"),
    ({"tools": [{}], "suffix": "b"}, "tools: cannot be done here: leave it out; suffix: cannot"),
    ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "repeat_last_n: cannot"),
    ({"n_predict": 1, "max_tokens": 2}, "n_predict: the same as max_tokens: leave out one"),
    ({"regex": "a", "guided_regex": "b"}, "guided_regex: the same as structured_outputs.regex"),
    ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag: cannot"),
    ({"structured_outputs": 3, "regex": "a"}, "structured_outputs: Expected object"),
])  # fmt: skip
def test_what_would_change_the_text_is_refused_by_name(body: dict[str, Any], line: str) -> None:
    with pytest.raises(ApiError, match="") as refusal:
        read({"prompt": "a", **body})
    assert str(refusal.value).startswith(line)
    assert refusal.value.param == line.partition(":")[0]


def test_unknown_names_are_ignored_with_a_warning_each() -> None:
    turns = [TURN | {"id": "1"}, TURN | {"id": "2"}]
    body = {"messages": turns, "frequency": 1, "keep_alive": {}, "stream_options": {"x": 1}}
    request, warnings = read(body)
    assert request == read({"messages": [TURN, TURN], "stream_options": {}})[0]
    ignored = "not known here, ignored"
    assert sorted(warnings) == [
        f"frequency: {ignored}; did you mean frequency_penalty?",
        f"keep_alive: {ignored}",
        f"messages.id: {ignored}",
        f"stream_options.x: {ignored}",
    ]


def test_a_strict_server_refuses_all_unknown_names_in_one_line() -> None:
    with pytest.raises(ApiError) as refusal:
        read({"prompt": "a", "frequency": 1, "keep_alive": {}}, strict=True)
    assert str(refusal.value) == (
        "frequency: no such parameter here; did you mean frequency_penalty?; "
        "keep_alive: no such parameter here"
    )
    assert (refusal.value.code, refusal.value.param) == ("unknown_parameter", "frequency")


def test_names_in_warnings_are_few_and_short() -> None:
    names = [f"{i}\n\x1b{'x' * 10_000}" for i in range(100)]
    _, warnings = read({"prompt": "a", **dict.fromkeys(names, 1)})
    assert len(warnings) == MOST_LINES + 1 and warnings[-1] == "and other names"
    assert all(len(line) < LONGEST_NAME + 60 and line.isprintable() for line in warnings)


def test_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = BodyReader(FullService().model)
    body = msgspec.json.encode({"model": MODEL, "prompt": "a", "x": 1})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert reader._parse(body, CompletionRequest, "").warnings
    assert [record.message for record in caplog.records] == ["x: not known here, ignored"]
