"""Sends the answers to a request as a response, whole or as a stream of events."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.serve.answer_stream import AnswerDelta, AnswerPart, AnswerStream
from eagle_aot.runtime_runner.serve.api.errors import error_body, stream_error
from eagle_aot.runtime_runner.serve.api.requests import GenerationRequest
from eagle_aot.runtime_runner.serve.api.responses import ResponseBuilder

T = TypeVar("T")
EventsOf = Callable[[AnswerStream, AnswerPart, AsyncIterator[AnswerPart]], AsyncIterator[bytes]]
"""A function that makes events of a stream, its first part and the others."""
CLIENT_CLOSED_REQUEST = 499
"""The status of a response that no client reads."""
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ClientDisconnected(Exception):
    """The client closed the connection."""


async def respond(
    connection: Request,
    request: GenerationRequest,
    stream: AnswerStream,
    builder: ResponseBuilder,
    write: EventsOf | None = None,
) -> Response:
    """Return the whole response, or one of events, those of `write` where they are no chunks. The
    stream is closed when it has been read."""
    streams = False
    try:
        if not request.stream:
            results = await until_disconnect(connection, stream.results())
            return JSONResponse(builder.full(results))
        parts = stream.parts()
        first = await until_disconnect(connection, anext(parts))  # an early failure has a status
        streams = True
    except ClientDisconnected:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        if not streams:
            stream.close()
    if write is None:
        content = events(request, stream, builder, first, parts)
    else:
        content = write(stream, first, parts)
    return StreamingResponse(content, media_type="text/event-stream", headers=EVENT_HEADERS)


async def events(
    request: GenerationRequest,
    stream: AnswerStream,
    builder: ResponseBuilder,
    first: AnswerPart,
    others: AsyncIterator[AnswerPart],
) -> AsyncIterator[bytes]:
    """Yield the events of a stream. A failure is its last event."""
    results: dict[int, Result] = {}
    writer = EventWriter(request, builder)
    try:
        for index, first_chunk in enumerate(map(builder.first_chunk, range(stream.count))):
            if first_chunk is not None:
                yield writer.event(index, first_chunk)
        part: AnswerPart | None = first
        while part is not None:
            index, item = part
            if isinstance(item, Result):
                results[index] = item
                chunks = builder.last_chunks(index, item)
            else:
                chunks = builder.chunks(index, item)
                writer.count(index, item)
            for chunk in chunks:
                yield writer.event(index, chunk)
            part = await anext(others, None)
        if request.include_usage:
            yield event(builder.usage_chunk([results[index] for index in sorted(results)]))
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield event(error_body(stream_error(error)))
    finally:
        stream.close()


class EventWriter:
    """Adds to the chunks of choices what the chunks before determine: warnings to the first one,
    and the tokens so far where usage is continuous."""

    def __init__(self, request: GenerationRequest, builder: ResponseBuilder) -> None:
        options = request.stream_options
        self._continuous = options is not None and bool(options.continuous_usage_stats)
        self._has_usage, self._builder = request.include_usage, builder
        self._warnings = builder.warned
        self._tokens: dict[int, int] = {}

    def count(self, index: int, piece: AnswerDelta) -> None:
        """Count the tokens of a choice."""
        self._tokens[index] = self._tokens.get(index, 0) + len(piece.tokens)

    def event(self, index: int, chunk: dict[str, Any]) -> bytes:
        """Return the event of a chunk. Unless usage is continuous, no chunk of a choice has it."""
        warnings, self._warnings = self._warnings, {}
        if not self._has_usage:
            return event(chunk | warnings)
        tokens = self._tokens.get(index, 0)
        usage = self._builder.usage_so_far(index, tokens) if self._continuous else None
        return event(chunk | warnings | {"usage": usage})


def event(content: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(content)}\n\n".encode()


async def until_disconnect(connection: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`. Raises ClientDisconnected if the client leaves first."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(connection))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected
    finally:
        for task in (working, leaving):
            task.cancel()


async def disconnected(connection: Request) -> None:
    """Return when the client has disconnected."""
    while (await connection.receive())["type"] != "http.disconnect":
        pass
