"""Attacks on a server on the loopback: connections and messages have limits, and others are served.

Limits are small, so that passing them takes little time.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPResponse
from typing import Any

import pytest
import uvicorn

from eagle_aot.runtime_runner.serve.api import connections
from eagle_aot.runtime_runner.serve.api.connections import (
    ConnectionLimits,
    LimitedConfig,
    LimitedProtocol,
)
from support.full_service import MODEL, PASSED, FullService

LIMITS = ConnectionLimits(
    connections=6,
    message_bytes=1 << 20,
    body_seconds=0.25,
    head_seconds=0.15,
    write_seconds=0.1,
    head_bytes=4096,
)
SECONDS = 5.0
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = b'{"model": "%s", "prompt": "a"}' % MODEL.encode()
KEY = b"Authorization: Bearer secret\r\n"
GOOD = HEAD + KEY + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


class Loopback:
    """A server with limits, in a thread."""

    def __init__(self, service: FullService, limits: ConnectionLimits, app: Any = None) -> None:
        limits = replace(limits, on_end=service.metrics.connection_ended)
        config = LimitedConfig(app or service.app, limits, log_config=None, lifespan="off")
        self.service, self.server = service, uvicorn.Server(config)
        self.listener = socket.create_server(("127.0.0.1", 0))

    def run(self) -> None:
        asyncio.run(self.server.serve([self.listener]))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname(), timeout=SECONDS)

    def send(self, content: bytes) -> bytes:
        """Return all that a connection gets until the server closes it."""
        with self.connect() as connection:
            connection.sendall(content)
            return rest(connection)

    def status(self, content: bytes) -> int:
        """Return the status of the first response."""
        with self.connect() as connection:
            connection.sendall(content)
            return status_of(connection)

    def ended(self, reason: str) -> float:
        return self.service.metric(f'eagle_connections_ended_total{{reason="{reason}"}}')


def status_of(connection: socket.socket) -> int:
    """Read the next response, and return its status."""
    response = HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


def rest(connection: socket.socket) -> bytes:
    """Return what a connection gets until its end."""
    parts = list[bytes]()
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@contextmanager
def serving(limits: ConnectionLimits = LIMITS, app: Any = None) -> Iterator[Loopback]:
    loopback = Loopback(FullService(keys=("secret",)), limits, app)
    thread = threading.Thread(target=loopback.run, daemon=True)
    thread.start()
    while not loopback.server.started:
        time.sleep(0.005)
    yield loopback
    loopback.server.should_exit = loopback.server.force_exit = True
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with serving() as loopback:
        yield loopback


def test_whole_messages_are_answered(loopback: Loopback) -> None:
    """On one connection, one after another and at once, with and without chunks."""
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    with loopback.connect() as connection:
        for content in (GOOD, HEAD + KEY + CHUNKED + b"\r\n" + chunks, HEALTH):
            connection.sendall(content)
            assert status_of(connection) == (200 if content is HEALTH else PASSED)
    last = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert loopback.send(HEALTH * 3 + last).count(b"HTTP/1.1 200") == 4


@pytest.mark.parametrize(("content", "status"), [
    (b"", b""),
    (b"POST /v1", b"408"),
    (HEAD, b"408"),
    (HEALTH + b"GET", b"408"),
    (HEAD + KEY + b"Content-Length: 9\r\n\r\n{", b"408"),
    (HEAD + KEY + CHUNKED + b"\r\n1\r\n{\r\n", b"408"),
    (HEAD + b"Content-Length: 9\r\n\r\n{", b"401"),
], ids=["nothing", "half a line", "half a head", "half a second head", "half a body",
        "half the chunks", "half a body without a key"])  # fmt: skip
def test_messages_that_stall_end_their_connection(
    loopback: Loopback, content: bytes, status: bytes
) -> None:
    late, started = loopback.ended("late"), time.monotonic()
    answer = loopback.send(content)
    assert time.monotonic() - started < 1
    assert loopback.ended("late") == late + 1
    assert answer.rpartition(b"HTTP/1.1 ")[2][:3] == status


def test_a_head_that_comes_byte_by_byte_is_ended_in_time(loopback: Loopback) -> None:
    started = time.monotonic()
    with loopback.connect() as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
        while time.monotonic() - started < SECONDS:
            connection.sendall(b"P" if time.monotonic() - started < 0.02 else b"X")
            time.sleep(0.01)
    assert time.monotonic() - started < 1.5


@pytest.mark.parametrize(("content", "status"), [
    (HEAD + b"X: " + b"a" * 5000, 431),
    (HEAD + b"X: a\r\n" * 101 + b"\r\n", 400),
    (HEAD + KEY + b"Content-Length: 3\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400),
    (HEAD + KEY + CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n", 400),
    (HEAD + KEY + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    (HEAD + KEY + b"Content-Length: 99999999\r\n\r\n", 413),
    (HEAD + KEY + CHUNKED + b"\r\n" + b"1\r\n \r\n" * 20_000, 400),
], ids=["long header", "many headers", "length, then chunks", "chunks, then length", "two lengths",
        "a long body declared", "many chunks"])  # fmt: skip
def test_messages_over_a_limit_are_refused(loopback: Loopback, content: bytes, status: int) -> None:
    assert loopback.status(content) == status
    assert loopback.status(HEALTH) == 200


@pytest.mark.parametrize("content", [
    HEAD + KEY + CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n" + HEALTH,
    HEAD + KEY + b"Content-Length: 3\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + HEALTH,
    HEALTH * 3000,
])  # fmt: skip
def test_no_later_message_of_a_wrong_connection_is_answered(
    loopback: Loopback, content: bytes
) -> None:
    answers = loopback.send(content)
    assert answers.count(b"HTTP/1.1 200") <= connections.MAX_PIPELINED + 1
    assert b"HTTP/1.1 400" in answers or answers.count(b"connection: close") == 1


@pytest.mark.parametrize(("content", "line"), [
    (HEAD + KEY + b"Content-Length: 3\r\n" + CHUNKED + b"\r\n0\r\n\r\n", "Content-Length"),
    (HEAD + KEY + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "Content-Length"),
    (HEAD + b"X: a\r\n" * 101 + b"\r\n", "too many headers"),
    (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", "url"),
    (b"\x16\x03\x01\x02\x00", "method"),
], ids=["length, then chunks", "two lengths", "many headers", "CONNECT", "TLS"])  # fmt: skip
def test_malformed_requests_are_counted_and_logged(
    loopback: Loopback, content: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    malformed = loopback.ended("malformed")
    with caplog.at_level(logging.INFO, connections.__name__):
        assert loopback.send(content).startswith(b"HTTP/1.1 400 ")
    assert loopback.ended("malformed") == malformed + 1
    (record,) = (r for r in caplog.records if r.name == connections.__name__)
    assert record.message.startswith("malformed request: ") and line in record.message


@pytest.mark.parametrize("content", [HEALTH * 12, HEALTH * 2 + b"no HTTP\r\n\r\n"])
def test_complete_requests_before_a_malformed_one_are_answered(
    loopback: Loopback, content: bytes
) -> None:
    malformed, answers = loopback.ended("malformed"), loopback.send(content)
    most = connections.MAX_PIPELINED + 1
    assert answers.count(b"HTTP/1.1 200") == min(content.count(HEALTH), most)
    assert b"HTTP/1.1 400" not in answers and answers.count(b"connection: close") == 1
    assert loopback.ended("malformed") == malformed + 1


def test_a_refused_client_cannot_send_forever(loopback: Loopback) -> None:
    """It gets its answer at once, and may send no more than the limit."""
    with loopback.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 9999999999\r\n\r\n")
        assert connection.recv(2000).startswith(b"HTTP/1.1 401")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(500):
                connection.sendall(bytes(1 << 16))


def test_idle_connections_make_room_for_others(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that has been idle longest is ended, and there is no line in the log for each."""
    too_many = loopback.ended("too_many")
    with ExitStack() as stack, caplog.at_level(logging.INFO):
        for i in range(60):
            idle = stack.enter_context(loopback.connect())
            idle.sendall([b"", b"GET", HEAD + KEY + b"Content-Length: 9\r\n\r\n{"][i % 3])
        assert loopback.status(HEALTH) == 200
        assert loopback.status(GOOD) == PASSED
    assert loopback.ended("too_many") >= too_many + 50
    assert len(caplog.records) < 70


def test_busy_connections_are_not_ended_for_others() -> None:
    """Nor by limits of time: their messages are complete."""
    release = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while not release.is_set():
            await asyncio.sleep(0.005)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with serving(app=app) as loopback, ExitStack() as stack:
        busy = [stack.enter_context(loopback.connect()) for _ in range(LIMITS.connections)]
        for connection in busy:
            connection.sendall(HEALTH)
        time.sleep(LIMITS.body_seconds + 0.05)
        assert loopback.send(b"") == b"", "no room"
        release.set()
        assert {connection.recv(100).split()[1] for connection in busy} == {b"204"}


def test_a_client_that_does_not_read_is_ended() -> None:
    ended = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(400):
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        ended.set()

    with serving(app=app) as loopback, loopback.connect() as connection:
        connection.sendall(HEALTH)
        assert ended.wait(2)
        assert not loopback.server.server_state.connections


def test_limits_follow_the_number_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(descriptors: int, opened: int) -> tuple[int, int]:
        pair = (descriptors, descriptors)
        monkeypatch.setattr("resource.getrlimit", lambda which: pair)
        monkeypatch.setattr("os.listdir", lambda path: [""] * opened)
        accepted = connections.accepted_at_once()
        return accepted, ConnectionLimits.of(1 << 20, accepted, print).connections

    assert limits(64, 24) == (4, 16)
    assert limits(1024, 30) == (64, 850)
    assert limits(1 << 20, 30) == (128, 1024)
    assert limits(20, 24) == (1, 1)


def test_websockets_are_not_spoken(loopback: Loopback) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    assert loopback.status(HEALTH.replace(b"\r\n\r\n", b"\r\n" + upgrade + key + b"\r\n")) == 200
    assert LimitedProtocol.__mro__[1].__name__ == "HttpToolsProtocol"
