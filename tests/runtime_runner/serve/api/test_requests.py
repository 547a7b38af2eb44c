"""A body that is too long or has a wrong parameter is refused in one line."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from eagle_aot.runtime_runner.serve.api.app import BodyLimit
from eagle_aot.runtime_runner.serve.api.errors import add_handlers, first_problem
from eagle_aot.runtime_runner.serve.api.requests import CompletionRequest

STRING = "Input should be a valid string"


@pytest.mark.parametrize(("body", "line", "param"), [
    ({}, "prompt: Field required", "prompt"),
    ({"prompt": 1}, f"prompt: {STRING} or Input should be a valid list", "prompt"),
    ({"prompt": []}, f"prompt: {STRING} or List should have at least 1 item", "prompt"),
    (
        {"prompt": "a", "chain_len": "x"},
        "chain_len: Input should be a valid integer or",
        "chain_len",
    ),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens: Input should be greater", "max_tokens"),
    ({"prompt": "a", "no-such": 1}, "no-such: no such parameter here", "no-such"),
    *(
        ({"prompt": "a", "logprobs": n}, "logprobs: Input should be", "logprobs")
        for n in (-1, 6, True, "2")
    ),
])  # fmt: skip
def test_an_error_says_what_a_parameter_may_be(body: dict[str, Any], line: str, param: str) -> None:
    with pytest.raises(ValidationError) as raised:
        CompletionRequest.model_validate({"model": "tiny"} | body)
    errors = raised.value.errors()
    problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in errors]
    error = first_problem(RequestValidationError(problems))
    assert str(error).startswith(line) and error.status == 400
    assert error.param == param


MAX_BYTES = 100


def app() -> FastAPI:
    app = FastAPI()
    app.add_middleware(BodyLimit, max_bytes=MAX_BYTES)
    add_handlers(app)

    @app.post("/")
    async def length(body: list[int]) -> int:
        return len(body)

    return app


async def in_parts(content: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(content), 30):
        yield content[first : first + 30]


async def post(content: bytes, *, has_length: bool) -> httpx.Response:
    transport = httpx.ASGITransport(app())
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        headers = {"content-type": "application/json"}
        body = content if has_length else in_parts(content)
        return await client.post("/", content=body, headers=headers)


@pytest.mark.parametrize("has_length", [True, False])
def test_the_longest_body_is_read_and_a_longer_one_refused(has_length: bool) -> None:
    longest = b"[1]".ljust(MAX_BYTES)
    assert asyncio.run(post(longest, has_length=has_length)).json() == 1
    refused = asyncio.run(post(longest + b" ", has_length=has_length))
    assert refused.status_code == 413
    assert refused.json()["error"]["message"] == "the body is longer than 100 bytes"
