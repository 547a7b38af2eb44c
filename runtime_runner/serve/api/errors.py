"""Failures as the OpenAI API words them."""

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
from eagle_aot.runtime_runner.serve.answers import RequestFailed
from eagle_aot.runtime_runner.serve.worker import Draining, Full

RETRY_AFTER = 1  # seconds
FORM = re.compile(r"\W|^(?:bool|float|int|str)$")
"""What is in pydantic's names for the forms of a parameter, and in no parameter's name."""


class Told(BaseModel):
    """What went wrong; `param` is the parameter that did."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """What all responses hold that are no answers, as the official client reads it."""

    error: Told


class ApiError(Exception):
    """An answer with a status of its own."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def api_error(error: Exception) -> ApiError:
    """Of what a request may raise; everything else is a bug, of which clients learn nothing."""
    if isinstance(error, ApiError):
        return error
    line = one_line(str(error))
    if isinstance(error, Full):
        return ApiError(429, line, "queue_full")
    if isinstance(error, Draining):
        return ApiError(503, line, "shutting_down")
    if isinstance(error, EagleError):
        return ApiError(400, line)
    if isinstance(error, RequestFailed):
        return ApiError(500, line, "request_failed")
    if isinstance(error, TimeoutError):
        return ApiError(504, line, "timeout")
    return ApiError(500, "internal error: the server's log says more", "internal_error")


def body(error: ApiError) -> dict[str, Any]:
    """A `Failure` of it."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    server_side = "server_error" if error.status >= 500 else "invalid_request_error"
    told = Told(
        message=str(error),
        type=kinds.get(error.status, server_side),
        param=error.param,
        code=error.code,
    )
    return Failure(error=told).model_dump()


def response(error: ApiError) -> JSONResponse:
    """The same, with its status."""
    headers = {"Retry-After": str(RETRY_AFTER)} if error.status in (429, 503) else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body(error), error.status, headers)


def add_handlers(app: FastAPI) -> None:
    """Let all failures of `app` read alike."""

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return response(api_error(error))

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return response(first_problem(error))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        told = response(ApiError(error.status_code, str(error.detail)))
        told.headers.update(error.headers or {})  # with 405, what is allowed
        return told

    for kind in (ApiError, EagleError, RequestFailed, TimeoutError, Exception):
        app.add_exception_handler(kind, failed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def first_problem(error: RequestValidationError) -> ApiError:
    """Of a request that is not what it should be, in one line; of a parameter that may have several
    forms, what each of them wants."""
    problem, *others = error.errors()
    if problem["type"] == "extra_forbidden":
        where = one_line(".".join(map(str, problem["loc"][1:])))
        return ApiError(400, f"{where}: no such parameter here", "unknown_parameter", where)
    if problem["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {problem['ctx']['error']}")
    where = parameter_of(problem)
    alike = [problem, *(other for other in others if parameter_of(other) == where)]
    wanted = dict.fromkeys(one["msg"].removeprefix("Value error, ") for one in alike)
    message = " or ".join(wanted)
    return ApiError(400, one_line(f"{where}: {message}" if where else message), param=where or None)


def parameter_of(problem: dict[str, Any]) -> str:
    """Where the request has it, without pydantic's names for the forms that it may have."""
    own = takewhile(lambda part: not FORM.search(str(part)), problem["loc"][1:])
    return one_line(".".join(map(str, own)))
