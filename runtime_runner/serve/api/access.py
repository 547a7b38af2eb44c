"""Which requests are let in: by host, by origin and by API key, before their bodies are read."""

import hmac
import ipaddress
from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.serve.api.errors import ApiError, ErrorReporter
from eagle_aot.runtime_runner.serve.service import ServedModel
from eagle_aot.runtime_runner.serve.spec import ServeSpec

OPEN = ("/", "/health", "/ping", "/metrics")
PAGE_FILES = "/page/"
"""Paths that need no key."""
HOSTLESS = ("/health", "/ping", "/metrics")
"""Paths that need no host either: health checks speak HTTP/1.0."""


class AccessCheck:
    """Middleware that refuses requests to another host, from pages of another origin, and without
    one of the API keys, if there are any.

    A browser sends a page's requests to this server under the page's own host name where that name
    resolves to this machine; only the header says so.
    """

    def __init__(
        self, app: ASGIApp, spec: ServeSpec, keys: Sequence[bytes], errors: ErrorReporter
    ) -> None:
        self._app, self._keys, self._errors = app, keys, errors
        self._hosts = {name.lower() for name in (spec.host, "localhost", *spec.allowed_host)}
        self._origins = set(spec.allow_origin)
        address = address_of(spec.host)
        self._any_address = address is not None and address.is_unspecified

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self.check(scope["path"], Headers(scope=scope))
        except ApiError as error:
            await self._errors.response(scope["path"], error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def check(self, path: str, headers: Headers) -> None:
        """Raise ApiError for a request that is refused."""
        hosts = headers.getlist("host")
        if not hosts and path in HOSTLESS:
            hosts = [""]
        elif len(hosts) != 1 or not self._is_here(hosts[0]):
            line = f"host {', '.join(hosts)!r}: not served here: start with --allowed-host NAME"
            raise ApiError(403, one_line(line), "host_not_allowed")
        for origin in headers.getlist("origin"):
            if not self._origins & {"*", origin} and host_of(origin) != hosts[0]:
                line = f"origin {origin!r}: not allowed: start with --allow-origin ORIGIN"
                raise ApiError(403, one_line(line), "origin_not_allowed")
        if path not in OPEN and not path.startswith(PAGE_FILES):
            self._check_key(headers.get("authorization", ""))

    def _is_here(self, host: str) -> bool:
        if set(host) & set("@/?#\\"):
            return False
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if self._hosts & {"*", name}:
            return True
        address = address_of(name)
        return address is not None and (address.is_loopback or self._any_address)

    def _check_key(self, authorization: str) -> None:
        is_bearer = authorization.partition(" ")[0].lower() == "bearer"
        equal = [hmac.compare_digest(sent_key(authorization), key) for key in self._keys]
        if self._keys and not (is_bearer and any(equal)):
            raise ApiError(401, "no valid API key: send Authorization: Bearer KEY", "invalid_key")


def sent_key(authorization: str) -> bytes:
    """Return the key in a header."""
    return authorization.partition(" ")[2].strip().encode("latin-1")  # as headers are decoded


def cache_salt(model: ServedModel, authorization: str, salt: str | None) -> str:
    """Return the salt under which rows of a request's prompt are cached: a hash of its key, unless
    `--share-prefixes` is given, and of the salt that it has itself.

    Neither the number of cached tokens nor the time of an answer then depends on prompts that were
    sent with another key.
    """
    key = b"" if model.spec.share_prefixes or not model.keys else sent_key(authorization)
    return sha256(b"\0".join((key, (salt or "").encode()))).hexdigest() if key or salt else ""


def host_of(origin: str) -> str:
    """Return the host and port in an origin; empty where it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # half an IPv6 address
        return ""


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host is, None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
