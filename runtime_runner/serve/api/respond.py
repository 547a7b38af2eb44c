"""From answers to the bytes of a response."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from eagle_aot.runtime_runner.frontend.result import Result
from eagle_aot.runtime_runner.serve.answers import Answers, Part
from eagle_aot.runtime_runner.serve.api.asked import Asked
from eagle_aot.runtime_runner.serve.api.errors import api_error, body
from eagle_aot.runtime_runner.serve.api.wording import Wording

log = logging.getLogger(__name__)
T = TypeVar("T")
GONE = 499
"""The status, which nobody reads, of a response whose client went away."""
AS_IT_COMES = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Gone(Exception):
    """The client went away."""


async def respond(request: Request, asked: Asked, answers: Answers, wording: Wording) -> Response:
    """Whole, or in events as it comes; the answers are closed once nobody reads them."""
    streams = False
    try:
        if not asked.stream:
            return JSONResponse(wording.whole(await unless_gone(request, answers.whole())))
        parts = answers.parts()
        first = await unless_gone(request, anext(parts))  # what fails at once has a status
        streams = True
    except Gone:
        return Response(status_code=GONE)
    finally:
        if not streams:
            answers.close()
    content = events(asked, answers, wording, first, parts)
    return StreamingResponse(content, media_type="text/event-stream", headers=AS_IT_COMES)


async def events(
    asked: Asked, answers: Answers, wording: Wording, first: Part, others: AsyncIterator[Part]
) -> AsyncIterator[bytes]:
    """Of a stream. What fails now is its last event."""
    results: dict[int, Result] = {}
    cost = {"usage": None} if asked.include_usage else {}  # which the last chunk alone knows
    try:
        for start in map(wording.start, range(answers.count)):
            if start is not None:
                yield event(start | cost)
        part: Part | None = first
        while part is not None:
            index, item = part
            if isinstance(item, Result):
                results[index] = item
                yield event(wording.end(index, item) | cost)
            else:
                delta = wording.delta(index, item)
                if item.text or item.trace:
                    yield event(delta | item.trace | cost)
            part = await anext(others, None)
        if asked.include_usage:
            yield event(wording.cost([results[index] for index in sorted(results)]))
        yield b"data: [DONE]\n\n"
    except Exception as error:
        log.exception("a stream failed")
        yield event(body(api_error(error)))
    finally:
        answers.close()


def event(content: dict[str, Any]) -> bytes:
    """Sent by the server."""
    return f"data: {json.dumps(content)}\n\n".encode()


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What comes of the work. Raises Gone where the client goes away before that."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Gone
    finally:
        for task in (working, leaving):
            task.cancel()


async def left(request: Request) -> None:
    """Ends when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
