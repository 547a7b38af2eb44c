"""Bodies that are too long are refused, whether they say how long they are or not."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from eagle_aot.runtime_runner.serve.api.body_limit import BodyLimit
from eagle_aot.runtime_runner.serve.api.errors import add_handlers

MOST = 100


def app() -> FastAPI:
    app = FastAPI()
    app.add_middleware(BodyLimit, most=MOST)
    add_handlers(app)

    @app.post("/")
    async def length(body: list[int]) -> int:
        return len(body)

    return app


async def in_parts(content: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(content), 30):
        yield content[first : first + 30]


async def post(content: bytes, *, said: bool) -> httpx.Response:
    transport = httpx.ASGITransport(app())
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        headers = {"content-type": "application/json"}
        sent = content if said else in_parts(content)
        return await client.post("/", content=sent, headers=headers)


@pytest.mark.parametrize("said", [True, False])
def test_the_longest_body_is_read_and_a_longer_one_refused(said: bool) -> None:
    longest = b"[1]".ljust(MOST)
    assert asyncio.run(post(longest, said=said)).json() == 1
    refused = asyncio.run(post(longest + b" ", said=said))
    assert refused.status_code == 413
    assert refused.json()["error"]["message"] == "the body is longer than 100 bytes"
