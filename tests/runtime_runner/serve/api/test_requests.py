"""A body that is too long or has a wrong parameter is refused in one line, at little cost."""

import asyncio
import json
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.tokenizer import library_errors
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.serve.answer_stream import INTERNAL_ERROR
from eagle_aot.runtime_runner.serve.api import bodies
from eagle_aot.runtime_runner.serve.api.requests import MAX_PARTS, CompletionRequest
from support.full_service import MODEL, PASSED, FullService
from support.posts import post

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MAX_BYTES = 100


@pytest.mark.parametrize(("body", "line", "param"), [
    ({}, "prompt: Field required", "prompt"),
    ({"prompt": 1}, "prompt: Expected str | array, got int", "prompt"),
    ({"prompt": []}, "prompt: Expected array of length >= 1", "prompt"),
    ({"prompt": ["a", [1]]}, "prompt: text, texts, ids or lists of ids", None),
    ({"prompt": ["a", 1]}, "prompt: text, texts, ids or lists of ids", None),
    ({"prompt": [[1], [True]]}, "prompt.1.0: Expected int, got bool", "prompt.1.0"),
    ({"prompt": ["a"] * 65}, "prompt: 65 prompts, 64 at most", None),
    ({"prompt": "a", "chain_len": "x"}, "chain_len: Invalid enum value 'x'", "chain_len"),
    ({"prompt": "a", "max_tokens": -2}, "max_tokens: Expected int >= -1", "max_tokens"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens 0: needs echo: true", None),
    ({"prompt": "a", "max_tokens": 8.0}, "max_tokens: Expected int, got float", "max_tokens"),
    ({"prompt": "a", "logit_bias": {"1.5": 1}}, "logit_bias: Expected int, got str", "logit_bias"),
    ({"prompt": "a", "stop": ["a"] * 17}, "stop: Expected array of length <= 16", "stop"),
    (
        {"prompt": "a", "logit_bias": dict.fromkeys(range(1025), 1)},
        "logit_bias: Expected object of length <= 1024",
        "logit_bias",
    ),
    *(({"prompt": "a", "logprobs": n}, "logprobs: Expected ", "logprobs") for n in (-1, 6, "2")),
    *(({"prompt": "a", "tree": text}, "tree: expected", None) for text in ("auto", "1,2,3\n")),
])  # fmt: skip
def test_an_error_says_what_a_parameter_may_be(
    body: dict[str, Any], line: str, param: str | None
) -> None:
    answer = post(COMPLETION, json.dumps({"model": MODEL} | body))
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["message"].startswith(line), error
    assert error["param"] == param


@pytest.mark.parametrize("body", [
    {"prompt": [[1, 2], [3]], "logit_bias": {"5": 1}, "tree": "2,2,4", "seed": 2**64 - 1},
    {"prompt": "a", "stop": "b", "max_tokens": None, "echo": None, "n": None, "stream": None},
    {"prompt": [1, 2], "allowed_token_ids": [1], "top_k": -1, "temperature": 1, "stop": []},
])  # fmt: skip
def test_valid_bodies_pass(body: dict[str, Any]) -> None:
    service = FullService()
    assert post(COMPLETION, json.dumps({"model": MODEL} | body), service).status_code == PASSED
    ((_, params), *_) = service.requests[0].prompts
    assert (params.max_new_tokens, params.temperature, params.top_k) == (16, 1.0, 0)
    assert params.logit_bias == ({5: 1.0} if "logit_bias" in body else {})


@pytest.mark.parametrize(("body", "tokens", "scored"), [
    ({"max_tokens": -1}, 1024, None),
    ({"max_tokens": 0, "echo": True}, 0, 0),
    ({"max_tokens": 0, "echo": True, "logprobs": 2}, 0, 2),
    ({"max_tokens": 3, "echo": True}, 3, None),
    ({"max_tokens": 3, "logprobs": True, "echo": True}, 3, 1),
])  # fmt: skip
def test_limits_of_completions(body: dict[str, Any], tokens: int, scored: int | None) -> None:
    service = FullService()
    sent = {"prompt": "a", "stop": ["", "b"]} | body  # without the model's name
    assert post(COMPLETION, json.dumps(sent), service).status_code == PASSED
    ((_, params),) = service.requests[0].prompts
    assert (params.max_new_tokens, params.prompt_logprobs) == (tokens, scored)
    assert params.stop_texts == ("b",)


def test_a_prompt_is_cut_to_its_last_tokens() -> None:
    for most, expected in ((2, (3, 4)), (4, (1, 2, 3, 4)), (-1, (1, 2, 3, 4)), (0, ())):
        request = CompletionRequest(prompt="a", truncate_prompt_tokens=most)
        assert request.truncated(TokenizedPrompt((1, 2, 3, 4)), 64).tokens == expected
    request = CompletionRequest(prompt="a", truncate_prompt_tokens=-1)
    assert request.truncated(TokenizedPrompt((1, 2, 3, 4)), 4).tokens == (2, 3, 4)


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_a_body_is_json_whatever_its_content_type(kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert post(COMPLETION, '{"prompt": "a"}', None, **headers).status_code == PASSED


@pytest.mark.parametrize("error", [ArtifactError("/secret PanicException"), MemoryError()])
def test_failures_of_the_tokenizer_are_the_servers(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def read(prompt: Any, *, raw: bool, **_: Any) -> Any:
        with library_errors("the tokenizer cannot encode the prompt"):
            raise error

    service = FullService()
    service.model.read = read
    answer = post(COMPLETION, json.dumps({"model": MODEL, "prompt": "a"}), service)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == INTERNAL_ERROR
    assert "the tokenizer cannot encode the prompt" in caplog.text


@pytest.mark.parametrize("number", ["1e999", '"x"'])
def test_a_wrong_bias_has_the_name_of_its_parameter(number: str) -> None:
    body = f'{{"model": "{MODEL}", "prompt": "a", "logit_bias": {{"1": {number}}}}}'
    error = post(COMPLETION, body).json()["error"]
    assert error["param"] == "logit_bias" and error["message"].startswith("logit_bias: ")


def nested(message: str, count: int) -> str:
    return f'{{"model": "{MODEL}", "messages": [{",".join([message] * count)}]}}'


PARTS = '{"role": "user", "content": [%s]}'
TEXT = '{"type": "text", "text": ""}'
CHAT_START = f'{{"model": "{MODEL}", "messages": ['
PROMPT_START = f'{{"model": "{MODEL}", "prompt": ['
FIELDS_START = f'{{"model": "{MODEL}", "prompt": "", '
COSTLY = {
    "parts without a type": (CHAT, CHAT_START, PARTS % ",".join(["{}"] * 1024), 1024),
    "many parts": (CHAT, CHAT_START, PARTS % ",".join([TEXT] * 1024), 60),
    "many messages": (CHAT, CHAT_START, '{"role": "user", "content": ""}', 90_000),
    "messages of a wrong type": (CHAT, CHAT_START, "[[]]", 300_000),
    "too many unknown keys": (CHAT, "{", '"%d":0', 780_000),
    "unknown keys": (CHAT, "{", '"%d":0', 520_000),
    "unknown keys in messages": (CHAT, CHAT_START, '{"a":0}', 260_000),
    "unknown keys of a message": (CHAT, CHAT_START + "{", '"%d": null', 170_000),
    "keys of logit_bias": (COMPLETION, FIELDS_START + '"logit_bias": {', '"%d": 1', 60_000),
    "floats for ids": (COMPLETION, PROMPT_START, "0.5", 750_000),
    "lists for ids": (COMPLETION, PROMPT_START, "[[]]", 170_000),
    "lists of one id": (COMPLETION, PROMPT_START, "[1]", 50_000),
    "more lists of one id": (COMPLETION, PROMPT_START, "[1]", 300_000),
    "ids of two kinds": (COMPLETION, PROMPT_START + '"",', "1", 300_000),
    "stops": (COMPLETION, FIELDS_START + '"stop": [', '"ab"', 100_000),
    "depth": (COMPLETION, '{"prompt": ' + "[" * 500_000, "1", 1),
    "depth in an unknown field": (COMPLETION, '{"x": ' + '{"a":' * 500_000, "1", 1),
    "a long number": (COMPLETION, FIELDS_START + '"seed": 1', "0" * 3_000_000, 1),
    "half a character": (COMPLETION, FIELDS_START + '"user": "', "\\ud83d" * 500_000, 1),
}


@pytest.mark.parametrize("name", COSTLY)
def test_wrong_bodies_cost_little(name: str) -> None:
    path, start, item, count = COSTLY[name]
    items = [item % i if "%d" in item else item for i in range(count)]
    ends = "".join({"[": "]", "{": "}"}.get(c, "") for c in reversed(start[-60:]))
    content = (start + ",".join(items) + ends).encode()
    service = FullService(max_body=16 << 20)
    started = time.process_time()
    answer = post(path, content, service)
    assert time.process_time() - started < 2
    assert answer.status_code == 400 and len(answer.text) < 2000, answer.text
    tracemalloc.start()  # makes it several times as slow
    try:
        post(path, content, service)
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("last", "flags", "accepted"), [
    ("assistant", {}, True),
    ("assistant", {"continue_final_message": True, "add_generation_prompt": False}, True),
    ("assistant", {"continue_final_message": False}, False),
    ("assistant", {"add_generation_prompt": True}, False),
    ("user", {"continue_final_message": False, "add_generation_prompt": True}, True),
    ("user", {"continue_final_message": True}, False),
    ("user", {"add_generation_prompt": False}, False),
])  # fmt: skip
def test_the_last_message_decides_what_is_continued(
    last: str, flags: dict[str, bool], accepted: bool
) -> None:
    turns = [{"role": "system", "content": "a"}, {"role": last, "content": "b"}]
    service = FullService()
    answer = post(CHAT, json.dumps({"messages": turns, **flags}), service)
    assert (answer.status_code == PASSED) == accepted == bool(service.requests)
    assert accepted or "the last message is continued if" in answer.json()["error"]["message"]


def test_a_system_message_alone_is_accepted() -> None:
    body = json.dumps({"messages": [{"role": "developer", "content": "a"}], "max_tokens": -1})
    assert post(CHAT, body).status_code == PASSED


def test_parts_are_counted_over_all_messages() -> None:
    few, many = (nested(PARTS % ",".join([TEXT] * 64), count) for count in (64, 65))
    assert post(CHAT, few).status_code == PASSED
    answer = post(CHAT, many)
    assert answer.status_code == 400
    line = f"messages: {MAX_PARTS + 64} parts, {MAX_PARTS} at most"
    assert answer.json()["error"]["message"] == line


def test_bodies_are_decoded_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[threading.Thread]()
    decode = msgspec.json.decode

    def decode_here(*arguments: Any, **options: Any) -> Any:
        threads.add(threading.current_thread())
        return decode(*arguments, **options)

    monkeypatch.setattr("msgspec.json.decode", decode_here)
    assert post(COMPLETION, f'{{"model": "{MODEL}", "prompt": ""}}').status_code == PASSED
    assert len(threads) == 1 and threading.main_thread() not in threads


async def in_parts(content: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(content), 30):
        yield content[first : first + 30]


@pytest.mark.parametrize("has_length", [True, False])
def test_the_longest_body_is_read_and_a_longer_one_refused(has_length: bool) -> None:
    service = FullService(max_body=MAX_BYTES)
    longest = f'{{"model": "{MODEL}", "prompt": ""}}'.encode().ljust(MAX_BYTES)
    bodies = [longest, longest + b" "]
    first, second = (
        post(COMPLETION, body if has_length else in_parts(body), service) for body in bodies
    )
    assert (first.status_code, second.status_code) == (PASSED, 413)
    assert second.json()["error"]["message"] == "the body is longer than 100 bytes"


def test_a_body_that_declares_too_many_bytes_is_not_read() -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    headers = {"content-length": "101"}
    assert post(COMPLETION, unread(), FullService(max_body=100), **headers).status_code == 413


def test_long_bodies_are_refused_while_others_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "MAX_READING", 1000)
    monkeypatch.setattr(bodies, "SMALL", 100)
    service = FullService()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"x" * 1001
        await asyncio.sleep(9)

    async def send() -> list[int]:
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            first = asyncio.create_task(client.post(COMPLETION, content=stalled()))
            await asyncio.sleep(0.02)
            body = f'{{"model": "{MODEL}", "prompt": ""}}'
            answers = [await client.post(COMPLETION, content=body.ljust(n)) for n in (100, 1200)]
            first.cancel()
            return [answer.status_code for answer in answers]

    assert asyncio.run(send()) == [PASSED, 503]


def test_many_answers_cost_little_more_than_one() -> None:
    """Their parameters are checked once, not for each answer; only their seeds differ."""
    ids = range(65536)
    body = {"model": MODEL, "prompt": "", "n": 128, "allowed_token_ids": [*ids], "seed": 2**64 - 2}
    service = FullService()
    started = time.process_time()
    assert post(COMPLETION, json.dumps(body), service).status_code == PASSED
    assert time.process_time() - started < 0.5
    params = [each for _, each in service.requests[0].prompts]
    assert [each.seed for each in params[:4]] == [2**64 - 2, 2**64 - 1, 0, 1]
    assert {(each.n, len(each.allowed_ids or ())) for each in params} == {(1, 65536)}


@pytest.mark.parametrize(("body", "form"), [
    ({"response_format": {"type": "text"}}, ()),
    ({"response_format": None, "structured_outputs": None}, ()),
    ({"response_format": {"type": "json_object"}}, ("json_schema", {"type": "object"})),
    ({"response_format": {"type": "json_object", "schema": {"type": "integer"}}},
     ("json_schema", {"type": "integer"})),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "answer", "strict": True, "schema": {"type": "null"}}}},
     ("json_schema", {"type": "null"})),
    ({"structured_outputs": {"json": {"type": "null"}}}, ("json_schema", {"type": "null"})),
    ({"structured_outputs": {"json": {}}}, ("json_schema", {})),
    ({"structured_outputs": {"json_object": True}}, ("json_schema", {"type": "object"})),
    ({"structured_outputs": {"json": "{}"}}, ("json_schema", "{}")),
    ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+")),
    ({"structured_outputs": {"grammar": "start: /a/"}}, ("grammar", "start: /a/")),
    ({"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
     ("grammar", '%llguidance {}\n\nstart: "a"\n     | "b"\n\n')),
    ({"structured_outputs": {"grammar": 'start: "::="'}}, ("grammar", 'start: "::="')),
    ({"structured_outputs": {"choice": ["a", "b"]}}, ("choices", ("a", "b"))),
])  # fmt: skip
def test_the_form_of_an_answer_is_read_from_the_names_of_openai_and_vllm(
    body: dict[str, Any], form: tuple[Any, ...]
) -> None:
    request = msgspec.convert({"model": MODEL, "prompt": "a", **body}, CompletionRequest)
    (params,) = request.parameters(64, "")
    assert (params.structure or ()) == form


@pytest.mark.parametrize(("body", "line"), [
    ({"response_format": {"type": "xml"}}, "response_format.type: Invalid value 'xml'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: Field required"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "regex and choices: an answer has"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "grammar: not readable as GBNF (Rule 'x'"),
    ({"structured_outputs": {"grammar": "root ::= " + "(" * 60_000}}, "grammar: not readable as"),
    ({"structured_outputs": {"grammar": "::=" * 30_000}}, "grammar: 90000 characters of GBNF"),
    ({"structured_outputs": {"choice": []}}, "choices: none or an empty one"),
    ({"structured_outputs": {"regex": "a"}, "min_tokens": 2}, "regex does not go with min_tokens"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
     "response_format and structured_outputs: leave out one"),
])  # fmt: skip
def test_a_form_that_contradicts_itself_is_refused(body: dict[str, Any], line: str) -> None:
    answer = post(COMPLETION, json.dumps({"model": MODEL, "prompt": "a", **body}))
    assert answer.status_code == 400 and line in answer.json()["error"]["message"]
