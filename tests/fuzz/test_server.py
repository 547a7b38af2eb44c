"""Any request gets a documented response in time, and later requests get the right text."""

import asyncio
import itertools
import json
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import event, given
from hypothesis import strategies as st
from starlette.types import Message

from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.service import LocalService
from eagle_aot.runtime_runner.serve.spec import ServeSpec
from fuzz.campaign import cases
from fuzz.requests import JSON, HttpRequest, requests

T = TypeVar("T")
SECONDS, PATIENCE = 60.0, 600.0
"""Of this process's CPU time and by the clock: 20 answers that fill the context take 13 s of CPU
time, which other processes stretch."""
MODEL, PROMPT = "tiny", "Ada has 27 marbles."
IDS = [5, 300, 301]
PLAIN = {"temperature": 0, "max_tokens": 6}
TURNS = [{"role": "user", "content": PROMPT}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": TURNS, **PLAIN},
    "/v1/completions": {"model": MODEL, "prompt": PROMPT, **PLAIN},
    "/v1/responses": {"model": MODEL, "input": PROMPT, "temperature": 0, "max_output_tokens": 6},
    "/tokenize": {"model": MODEL, "prompt": PROMPT},
    "/detokenize": {"model": MODEL, "tokens": IDS},
}
REFUSED = {400, 404, 405, 413, 429}
"""The statuses of requests that are wrong, or too many: docs/serving.md."""

INTERNALS = ("Traceback", 'File "', "site-packages", "runtime_runner", "eagle_aot")
"""Texts that reveal the server's files."""


class Client:
    """Sends requests to an application in this process, which may take `SECONDS` at most."""

    def __init__(self, app: FastAPI, texts: dict[str, str]) -> None:
        """`texts` are the answers to the `GOOD` requests."""
        self.app, self._texts, self._paths = app, texts, itertools.cycle(GOOD)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self._loop = asyncio.Runner()
        self.requests = requests(app.openapi(), GOOD)

    def send(self, message: HttpRequest) -> httpx.Response:
        headers = {} if message.content_type is None else {"content-type": message.content_type}
        request = self._http.build_request(
            message.method, message.path, content=message.content, headers=headers
        )
        return self.run(self._http.send(request))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of all requests. Raises TimeoutError if it does not end."""
        started = time.process_time()
        result = self._loop.run(asyncio.wait_for(work, PATIENCE))
        assert time.process_time() - started < SECONDS
        return result

    def send_valid(self, path: str, body: Any) -> dict[int, str]:
        """Return the texts of a request that must be answered."""
        answer = self.send(HttpRequest("POST", path, json.dumps(body).encode()))
        assert answer.status_code == 200, answer.text
        return texts(answer)

    def check(self) -> None:
        """Check that the next request gets the right text."""
        path = next(self._paths)
        assert self.send_valid(path, GOOD[path]) == {0: self._texts[path]}

    def close(self) -> None:
        self.run(self._http.aclose())
        self._loop.close()


@pytest.fixture(scope="module")
def client(batch_artifact: Path) -> Iterator[Client]:
    """Of a server with caches for four, whose texts have at most 192 tokens."""
    runner = load_artifact(batch_artifact)
    chat = runner.generate(PROMPT, 6, speculate=False).text or ""
    expected = {
        "/v1/chat/completions": chat,
        "/v1/completions": runner.generate(PROMPT, 6, speculate=False, raw_prompt=True).text or "",
        "/v1/responses": chat,
        "/tokenize": str(runner.encode(PROMPT, raw=True)),
        "/detokenize": runner.tokenizer.decode(IDS, skip_special_tokens=False),
    }
    spec = ServeSpec(artifact=batch_artifact, served_model_name=(MODEL,), max_body=1 << 16)
    runner.adaptive_schedule(trees=False)  # as eagle-serve does: it is not a request's work
    service = LocalService(runner, spec)
    service.worker.start()
    client = Client(make_app(service), expected)
    yield client
    client.close()
    service.worker.close()


@cases(suite=300, campaign=10_000)
@given(data=st.data())
def test_any_request_is_answered_or_refused_in_one_line(
    client: Client, data: st.DataObject
) -> None:
    request = data.draw(client.requests)
    answer = client.send(request)
    event(f"{answer.status_code} {request.path if request.path in GOOD else 'elsewhere'}")
    assert not [word for word in INTERNALS if word in answer.text]
    if request.method == "HEAD":
        assert answer.status_code in {200, *REFUSED} and not answer.content
    elif answer.status_code != 200:
        check_refusal(answer)
    elif request.path in GOOD:
        assert texts(answer) == client.send_valid(request.path, plain_body(request, answer))
    client.check()


def check_refusal(answer: httpx.Response) -> None:
    """Check that OpenAI's clients can read an error."""
    assert answer.status_code in REFUSED, answer.text
    assert answer.headers["content-type"] == JSON
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "\n" not in error["message"] and len(error["message"]) < 2000
    assert error["type"] in ("invalid_request_error", "rate_limit_error")


def plain_body(request: HttpRequest, answer: httpx.Response) -> dict[str, Any]:
    """Return the body that requests the same texts, whole and without drafts."""
    body: dict[str, Any] = json.loads(request.content)
    for name in ("chain_len", "tree", "stream", "stream_options", "trace"):
        body.pop(name, None)
    return body | {"speculate": False, "seed": seed(answer)}


def objects(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the object of a response, or those of a stream, which must be complete."""
    if answer.headers["content-type"] == JSON:
        return [answer.json()]
    *events, end = answer.text.split("\n\n")
    lines = [event.partition("data: ")[2] for event in events]
    assert end == ""
    if lines[-1] == "[DONE]":
        return [json.loads(line) for line in lines[:-1]]
    last = json.loads(lines[-1])
    assert last["type"] in ("response.completed", "response.incomplete")
    return [last["response"]]


def texts(answer: httpx.Response) -> dict[int, str]:
    """Return the texts of choices, by their indices, or that of any other answer."""
    by_index: dict[int, str] = {}
    for value in objects(answer):
        for index, text in parts(value):
            by_index[index] = by_index.get(index, "") + text
    return by_index


def parts(value: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield what an object has of texts, each with the index of its choice."""
    for choice in value.get("choices", ()):
        part = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        yield choice["index"], part.get("content") or ""
    for item in value.get("output", ()):
        yield 0, item.get("arguments") or "".join(part["text"] for part in item["content"])
    for name in ("tokens", "prompt"):  # of /tokenize and /detokenize
        if name in value:
            yield 0, str(value[name])


def seed(answer: httpx.Response) -> int | None:
    """Return the seed of the first choice, None where nothing is drawn; the last part of a stream
    has it."""
    values = objects(answer)
    choices = [choice for value in values for choice in value.get("choices", ())]
    ends = [choice for choice in choices if choice["finish_reason"] and choice["index"] == 0]
    last: int | None = (ends or values)[-1].get("seed")
    return last


@pytest.mark.parametrize("name", ["two\nlines", "é" * 9000])
def test_an_unknown_parameter_has_one_short_line(client: Client, name: str) -> None:
    path = "/v1/completions"
    answer = client.send(HttpRequest("POST", path, json.dumps({**GOOD[path], name: 1}).encode()))
    (line,) = answer.json()["warnings"]
    assert answer.status_code == 200 and len(line) < 120 and line.isprintable()


def test_half_a_character_is_refused(client: Client) -> None:
    path = "/v1/completions"
    body = json.dumps({**GOOD[path], "\ud800": 1}).encode()
    check_refusal(client.send(HttpRequest("POST", path, body)))


def test_a_body_that_breaks_off_is_a_bad_request(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/v1/completions"
    headers = [(b"host", b"localhost")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": headers,
    }
    parts: list[Message] = [
        {"type": "http.request", "body": b'{"model": "ti', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return parts.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    client.run(client.app(scope, receive, send))
    assert [message["status"] for message in sent if "status" in message] == [400]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    client.check()
