"""Requests to another host, from another origin or without a key are refused unread."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from eagle_aot.runtime_runner.serve.api.access import AccessCheck
from eagle_aot.runtime_runner.serve.api.errors import ApiError
from support.full_service import MODEL, PASSED, FullService

COMPLETION = "/v1/completions"
BODY = f'{{"model": "{MODEL}", "prompt": "a"}}'


def request(
    service: FullService, headers: Any, content: Any = BODY, method: str = "POST",
    path: str = COMPLETION,
) -> httpx.Response:  # fmt: skip
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, content=content, headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize(("options", "host", "passes"), [
    ({}, "127.0.0.1:8000", True),
    ({}, "LOCALHOST", True),
    ({}, "[::1]:8000", True),
    ({}, "127.0.0.2", True),
    ({}, "rebound.example:8000", False),
    ({}, "localhost.evil.example", False),
    ({}, "127.0.0.1.evil.example", False),
    ({}, "10.1.2.3", False),
    ({}, "", False),
    ({}, "[::1", False),
    ({}, "user@localhost", False),
    ({}, "localhost/evil", False),
    ({}, "localhost?evil", False),
    ({"allowed_host": ("*",)}, "user@localhost", False),
    ({"host": "10.1.2.3"}, "10.1.2.3:8000", True),
    ({"host": "10.1.2.3"}, "10.1.2.4:8000", False),
    ({"host": "Box.lan"}, "box.lan", True),
    ({"host": "0.0.0.0"}, "10.1.2.3:8000", True),
    ({"host": "::"}, "[fd00::1]:8000", True),
    ({"host": "0.0.0.0"}, "rebound.example", False),
    ({"allowed_host": ("api.example", "b")}, "api.example:443", True),
    ({"allowed_host": ("*",)}, "anything.example", True),
])  # fmt: skip
def test_only_allowed_hosts_are_answered(options: Any, host: str, passes: bool) -> None:
    for path, good in ((COMPLETION, PASSED), ("/health", 200)):
        method = "POST" if path == COMPLETION else "GET"
        answer = request(FullService(**options), {"host": host}, BODY, method, path)
        assert answer.status_code == (good if passes else 403)
    if not passes:
        assert answer.json()["error"]["code"] == "host_not_allowed"
        assert "--allowed-host" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("path", "passes"), [
    ("/health", True), ("/metrics", True), ("/", False), ("/v1/models", False),
])  # fmt: skip
def test_health_checks_need_no_host(path: str, passes: bool) -> None:
    service = FullService()
    check = AccessCheck(service.app, service.model.spec, (), errors=None)  # type: ignore[arg-type]
    if passes:
        check.check(path, Headers({}))
    else:
        with pytest.raises(ApiError, match="--allowed-host"):
            check.check(path, Headers({}))
    with pytest.raises(ApiError, match="--allow-origin"):
        check.check("/health", Headers({"origin": "https://evil.example"}))


def test_two_hosts_are_refused() -> None:
    headers = [("host", "localhost"), ("host", "rebound.example")]
    assert request(FullService(), headers).status_code == 403


@pytest.mark.parametrize(("allowed", "origin", "passes"), [
    ((), "http://localhost:8000", True),
    ((), "https://localhost:8000", True),  # a proxy speaks TLS
    ((), "http://localhost:9000", False),
    ((), "https://evil.example", False),
    ((), "null", False),
    ((), "http://[", False),
    (("https://chat.example",), "https://chat.example", True),
    (("https://chat.example",), "http://chat.example", False),
    (("*",), "https://chat.example", True),
])  # fmt: skip
def test_only_allowed_origins_are_answered(
    allowed: tuple[str, ...], origin: str, passes: bool
) -> None:
    service = FullService(allow_origin=allowed)
    headers = {"host": "localhost:8000", "origin": origin}
    answer = request(service, headers)
    assert answer.status_code == (PASSED if passes else 403)
    assert ("access-control-allow-origin" in answer.headers) == bool(passes and allowed)
    preflighted = {"access-control-request-method": "POST"}
    preflight = request(service, headers | preflighted, b"", "OPTIONS")
    assert (preflight.status_code == 200) == bool(passes and allowed)


def test_allowed_pages_may_send_a_key() -> None:
    service = FullService(keys=("secret",), allow_origin=("https://chat.example",))
    headers = {"origin": "https://chat.example"}
    wanted = {"access-control-request-method": "POST",
              "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    preflight = request(service, headers | wanted, b"", "OPTIONS")
    assert preflight.status_code == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert request(service, headers).status_code == 401
    assert request(service, headers | {"authorization": "Bearer secret"}).status_code == PASSED


@pytest.mark.parametrize(("method", "path", "needs_key"), [
    ("POST", COMPLETION, True), ("POST", "/v1/chat/completions", True),
    ("GET", "/v1/models", True), ("GET", "/openapi.json", True), ("GET", "/nothing", True),
    ("GET", "/health", False), ("GET", "/metrics", False), ("GET", "/", False),
    ("GET", "/page/page.js", False),
])  # fmt: skip
def test_the_key_is_checked_before_the_body_is_read(
    method: str, path: str, needs_key: bool
) -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    body = unread() if needs_key else b""
    answer = request(FullService(keys=("secret",)), {}, body, method, path)
    assert (answer.status_code == 401) == needs_key
    assert "www-authenticate" in answer.headers or not needs_key


@pytest.mark.parametrize(("body", "status", "line", "code"), [
    ('{"model": "tiny"}', 400, "prompt: Field required", ""),
    ('{"model": "tiny", "x": 1}', 400, "x: no such parameter here", "unknown_parameter"),
    ('{"model": "gpt", "prompt": ""}', 404, "model 'gpt': not here", "model_not_found"),
    ("x" * 101, 413, "the body is longer than 100 bytes", ""),
])  # fmt: skip
def test_refusals_are_logged_with_their_reason_and_counted(
    body: str, status: int, line: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = FullService(max_body=100, strict=True)
    with caplog.at_level(logging.INFO):
        assert request(service, {}, body).status_code == status
        assert request(service, {"host": "evil"}, body).status_code == 403
    (refused, other) = (r for r in caplog.records if hasattr(r, "fields"))
    assert refused.message.startswith(line) and "--allowed-host" in other.message
    assert vars(refused)["fields"] == {"status": status, "path": COMPLETION}
    name = 'eagle_error_responses_total{code="%s",status="%s"}'
    assert service.metric(name % (code, status)) == 1
    assert service.metric(name % ("host_not_allowed", 403)) == 1


def test_other_scopes_pass_unchecked() -> None:
    scopes = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope["type"])

    service = FullService()
    check = AccessCheck(app, service.model.spec, (), errors=None)  # type: ignore[arg-type]
    asyncio.run(check({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert scopes == ["lifespan"]


def salts(service: FullService, key: str, salt: str = "") -> set[str]:
    """Return the salts of a request's answers in the prefix cache."""
    body = {"model": MODEL, "prompt": ["a", "b"], "n": 2} | ({"cache_salt": salt} if salt else {})
    headers = {"authorization": key} if key else {}
    assert request(service, headers, json.dumps(body)).status_code == PASSED
    return {parameters.cache_salt for _, parameters in service.requests[-1].prompts}


def test_cached_prompts_are_shared_within_a_key_and_a_salt() -> None:
    """Each request has one salt, which does not contain its key."""
    service, keys = FullService(keys=("first", "second")), ("Bearer first", "Bearer second")
    seen = [salts(service, key, salt) for key in keys for salt in ("", "a", "b")]
    assert all(len(found) == 1 for found in seen) and len(set.union(*seen)) == 6
    assert not any("first" in found or "second" in found for found in set.union(*seen))
    assert salts(service, "bearer  first ", "a") == seen[1], "the same key in another form"
    shared = FullService(keys=("first", "second"), share_prefixes=True)
    one, other = ([salts(shared, key, salt) for salt in ("", "a", "b")] for key in keys)
    assert one == other and one[0] == {""} and len(set.union(*one)) == 3
    without = FullService()
    assert salts(without, "") == salts(without, "Bearer any") == {""}
    assert salts(without, "", "a") == salts(without, "Bearer any", "a") == one[1]
