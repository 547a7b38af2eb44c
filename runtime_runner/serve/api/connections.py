"""HTTP/1.1 connections with limits on their number, and on the time and bytes of each message."""

import asyncio
import logging
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from eagle_aot.common.text import one_line

log = logging.getLogger(__name__)
MAX_CONNECTIONS = 1024
MAX_ACCEPTED = 128
SPARE_DESCRIPTORS = 16
MIN_RATE = 100_000
"""Bytes per second of the longest body."""
MAX_HEADERS, MAX_PIPELINED = 100, 8
FREE_CHUNKS, CHUNK_BYTES = 1024, 128
"""Chunks of a message may be of any size; more of them must have so many bytes on average."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionLimits:
    """The limits of each message of a client, and the limit of open `connections`.

    A client that gets an error may send the rest of its message, up to `message_bytes`, which is
    not kept.
    """

    connections: int
    message_bytes: int
    body_seconds: float
    head_seconds: float = 10.0
    write_seconds: float = 60.0
    head_bytes: int = 1 << 16
    on_end: Callable[[str], None] = lambda reason: None
    """Called with the reason when a connection is ended."""

    @classmethod
    def of(cls, max_body: int, accepted: int, on_end: Callable[[str], None]) -> "ConnectionLimits":
        """Return the limits of this process for bodies of up to `max_body` bytes. It accepts
        up to `accepted` connections before it does anything else."""
        free = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/dev/fd"))
        return cls(
            connections=min(MAX_CONNECTIONS, max(1, free - 2 * accepted - SPARE_DESCRIPTORS)),
            message_bytes=2 * max_body + (8 << 20),
            body_seconds=20 + max_body / MIN_RATE,
            on_end=on_end,
        )


def accepted_at_once() -> int:
    """Return how many connections to accept before anything else is done, for the number of
    descriptors."""
    return min(MAX_ACCEPTED, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16))


class LimitedConfig(uvicorn.Config):
    """A configuration of servers whose connections have limits."""

    def __init__(self, app: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(app, http=LimitedProtocol, ws="none", **options)
        self.limits = limits


class LimitedProtocol(HttpToolsProtocol):
    """One connection. httptools ends those whose messages have both Content-Length and
    Transfer-Encoding."""

    def __init__(
        self,
        config: LimitedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._in_head = True
        """Whether the next thing that the client sends is, or continues, the head of a message."""
        self._bytes = self._chunks = 0
        """Of the message that has begun; 0 between messages."""
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()
        self._malformed = False
        """Whether the rest of what the client sends is dropped."""

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_idle(self) -> bool:
        """Whether the server waits for the client's next message, or for its rest."""
        return not self.transport.is_closing() and not (self._in_head and self._answering)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(self._limits.head_seconds)
        if len(self.connections) > self._limits.connections:
            self._make_room()

    def _make_room(self) -> None:
        """End the connection that has been idle longest, which may be this one."""
        connections = [c for c in self.connections if isinstance(c, LimitedProtocol)]
        if sum(not c.transport.is_closing() for c in connections) > self._limits.connections:
            idle = (c for c in connections if c._is_idle)
            min(idle, key=lambda c: c._idle_since).end("too_many", b"503 Service Unavailable")

    def end(self, reason: str, status: bytes) -> None:
        """Close the connection, after a response with that status to a message that has begun and
        has none."""
        self._limits.on_end(reason)
        if self._in_head:
            unanswered = self._bytes > 0 and not self._answering
        else:
            unanswered = not self.cycle.response_started
        if unanswered:
            headers = b"content-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(b"HTTP/1.1 " + status + b"\r\n" + headers)
        self.transport.close()
        self.loop.call_later(1, self.transport.abort)  # where the client does not read

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._bytes += len(data)
        if self._malformed:
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is answered; no other protocol is spoken
        except httptools.HttpParserError as error:
            self._refuse(error)
        if self._malformed or self.transport.is_closing():
            return
        if self._in_head and self._bytes and self._deadline is None:
            self._expect(self._limits.head_seconds)
        limits = self._limits
        if self._bytes > (limits.head_bytes if self._in_head else limits.message_bytes):
            self.end(
                "too_long",
                b"431 Request Header Fields Too Large"
                if self._in_head
                else b"413 Content Too Large",
            )

    def _refuse(self, error: httptools.HttpParserError) -> None:
        """End the connection for what is no message, or is over a limit. The complete requests
        before it are answered."""
        self._malformed = True
        log.info("malformed request: %s", one_line(str(error.__context__ or error)))
        if self._in_head and self._answering:
            self._limits.on_end("malformed")
            self._expect(None)
            self.cycle.keep_alive = False  # the last request's
        else:
            self.end("malformed", b"400 Bad Request")

    def _expect(self, seconds: float | None) -> None:
        """End the connection unless the next part of the message is whole in that time; None for
        no limit."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if seconds is not None:
            late = b"408 Request Timeout"
            self._deadline = self.loop.call_later(seconds, self.end, "late", late)

    def on_message_begin(self) -> None:
        self._bytes = max(self._bytes, 1)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests at once")
        super().on_headers_complete()
        self._in_head = False
        self._expect(self._limits.body_seconds)

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > FREE_CHUNKS + self._bytes / CHUNK_BYTES:
            raise ValueError("too many chunks")

    def on_message_complete(self) -> None:
        self._in_head, self._bytes, self._chunks = True, 0, 0
        self._expect(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        seconds = self._limits.write_seconds
        self._write_deadline = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        self._write_deadline = None
        if self.flow is not None:
            super().resume_writing()
