"""Errors in the form of the OpenAI API."""

import re
from itertools import takewhile
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from eagle_aot.common.errors import EagleError
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.serve.answer_stream import INTERNAL_ERROR, RequestFailed
from eagle_aot.runtime_runner.serve.worker import Draining, QueueFull

RETRY_AFTER = 1  # seconds
FORM = re.compile(r"\W|^(?:bool|float|int|str)$")
"""Matches pydantic's names for the forms of a parameter, and no parameter's name."""


KINDS: tuple[tuple[type[Exception], int, str | None], ...] = (
    (QueueFull, 429, "queue_full"),
    (Draining, 503, "shutting_down"),
    (EagleError, 400, None),
    (RequestFailed, 500, "request_failed"),
    (TimeoutError, 504, "timeout"),
)
"""The status and the code of each exception that a request may raise."""


class ErrorBody(BaseModel):
    """An error; `param` is the parameter that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
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
    """Return the error for an exception that a request may raise; any other one is a bug, and
    clients get no details."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in KINDS:
        if isinstance(error, kind):
            return ApiError(status, one_line(str(error)), code)
    return ApiError(500, INTERNAL_ERROR, "internal_error")


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
    return ErrorResponse(error=body).model_dump()


def error_response(error: ApiError) -> JSONResponse:
    """Return the response for an error."""
    headers = {"Retry-After": str(RETRY_AFTER)} if error.status in (429, 503) else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), error.status, headers)


def add_handlers(app: FastAPI) -> None:
    """Give all failures of `app` the same form."""

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return error_response(api_error(error))

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(first_problem(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        response = error_response(ApiError(error.status_code, str(error.detail)))
        response.headers.update(error.headers or {})  # with 405, the methods that are allowed
        return response

    for kind in (ApiError, EagleError, RequestFailed, TimeoutError, Exception):
        app.add_exception_handler(kind, failed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def first_problem(error: RequestValidationError) -> ApiError:
    """Return what is wrong with the first wrong parameter of a request, in one line; where it may
    have several forms, what each of them requires."""
    problem, *others = error.errors()
    if problem["type"] == "extra_forbidden":
        name = one_line(".".join(map(str, problem["loc"][1:])))
        return ApiError(400, f"{name}: no such parameter here", "unknown_parameter", name)
    if problem["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {problem['ctx']['error']}")
    name = parameter_of(problem)
    forms = [problem, *(other for other in others if parameter_of(other) == name)]
    required = dict.fromkeys(form["msg"].removeprefix("Value error, ") for form in forms)
    message = " or ".join(required)
    return ApiError(400, one_line(f"{name}: {message}" if name else message), param=name or None)


def parameter_of(problem: dict[str, Any]) -> str:
    """Return the path of a parameter in the request, without pydantic's names for its forms."""
    path = takewhile(lambda part: not FORM.search(str(part)), problem["loc"][1:])
    return one_line(".".join(map(str, path)))
