"""A body that is too long is refused, whether its length is known or not."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from eagle_aot.runtime_runner.serve.api.app import BodyLimit
from eagle_aot.runtime_runner.serve.api.errors import add_handlers

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
