"""Errors in the form of the OpenAI API."""

import logging
import re
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from eagle_aot.common.errors import ArtifactError, ContextLengthError, EagleError
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.serve.answer_stream import INTERNAL_ERROR, RequestFailed
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.worker import Draining, QueueFull

log = logging.getLogger(__name__)
RETRY_AFTER = 1  # seconds
PROBLEM = re.compile(r"(?P<problem>.*?)(?: - at `(?:key` in `)?\$(?P<path>[^`]*)`)?", re.DOTALL)
MISSING = re.compile("Object missing required field `(.*)`")
INDEX = re.compile(r"\[([0-9]+)\]")
"""Patterns of msgspec's error lines."""
ANY_KEY = "[...]"
"""How they name a value in a dict."""

KINDS: tuple[tuple[type[Exception], int, str | None], ...] = (
    (QueueFull, 429, "queue_full"),
    (Draining, 503, "shutting_down"),
    (ContextLengthError, 400, "context_length_exceeded"),
    (EagleError, 400, None),
    (RequestFailed, 500, "request_failed"),
    (TimeoutError, 504, "timeout"),
)
"""The status and the code of each exception that a request may raise."""


class ErrorBody(msgspec.Struct):
    """An error; `param` is the parameter that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct):
    """The body of error responses, as the official client reads it."""

    error: ErrorBody


class ApiError(Exception):
    """An error with a status of its own."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def api_error(error: Exception) -> ApiError:
    """Return the error for an exception that a request may raise. Any other one is a bug or a
    failure of the artifact, whose text is for the log alone."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in KINDS:
        if isinstance(error, kind) and not isinstance(error, ArtifactError):
            return ApiError(status, one_line(str(error)), code)
    return ApiError(500, INTERNAL_ERROR, "internal_error")


def stream_error(error: Exception) -> ApiError:
    """Return the error that ends a stream. The log has the traceback of a failure of the server."""
    ending = api_error(error)
    if ending.status == 500:
        log.error("a stream failed", exc_info=error)
    else:
        log.info("a stream ended: %s", ending)
    return ending


def error_body(error: ApiError) -> dict[str, Any]:
    """Return an `ErrorResponse` as JSON."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    server_side = "server_error" if error.status >= 500 else "invalid_request_error"
    body = ErrorBody(
        message=str(error),
        type=kinds.get(error.status, server_side),
        param=error.param,
        code=error.code,
    )
    return msgspec.to_builtins(ErrorResponse(error=body))


class ErrorReporter:
    """Makes the responses for errors, each with a line in the log and a count in the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def response(self, path: str, error: ApiError) -> JSONResponse:
        """Return the response for an error of a request to `path`."""
        self._metrics.refused(error.status, error.code or "")
        fields = {"status": error.status, "path": one_line(path)}
        log.info("%s", error, extra={"fields": fields})
        headers = {"Retry-After": str(RETRY_AFTER)} if error.status in (429, 503) else {}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(error_body(error), error.status, headers)

    def add_handlers(self, app: FastAPI) -> None:
        """Give all failures of `app` the same form."""

        async def failed(request: Request, error: Exception) -> JSONResponse:
            if isinstance(error, ArtifactError):  # uvicorn logs those that are no EagleError
                log.error("a request failed", exc_info=error)
            return self.response(request.url.path, api_error(error))

        async def http(request: Request, error: Exception) -> JSONResponse:
            assert isinstance(error, HTTPException)
            line = str(error.detail)
            if error.status_code == 404:
                paths = sorted(path for path in app.openapi()["paths"] if "{" not in path)
                line = f"{request.url.path}: not served here: {', '.join(paths)}"
            refusal = ApiError(error.status_code, one_line(line))
            response = self.response(request.url.path, refusal)
            response.headers.update(error.headers or {})  # with 405, the methods that are allowed
            return response

        for kind in (ApiError, EagleError, RequestFailed, TimeoutError, Exception):
            app.add_exception_handler(kind, failed)
        app.add_exception_handler(HTTPException, http)


def invalid_body(error: Exception) -> ApiError:
    """Return what is wrong with a body that msgspec does not decode, in one line."""
    if isinstance(error, RecursionError):
        return ApiError(400, "the body is nested too deeply")
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, one_line(f"the body is not JSON: {error}"))
    match = PROBLEM.fullmatch(str(error))
    assert match is not None
    problem, path = match["problem"], (match["path"] or "").replace(ANY_KEY, "")
    path = INDEX.sub(r".\1", path).lstrip(".")
    if missing := MISSING.fullmatch(problem):
        path = ".".join(filter(None, (path, missing[1])))
    path = one_line(path)
    message = "Field required" if missing else problem.replace(" | null", "").replace("`", "")
    return ApiError(400, one_line(f"{path}: {message}" if path else message), param=path or None)
