"""Reads the bodies of requests: within limits, and into their structs in a thread."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from eagle_aot.common.prompts import Prompt
from eagle_aot.common.structs import convert, describe
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.serve.api.access import cache_salt
from eagle_aot.runtime_runner.serve.api.errors import ApiError, invalid_body
from eagle_aot.runtime_runner.serve.api.fields import FieldReader
from eagle_aot.runtime_runner.serve.api.requests import GenerationRequest, ModelRequest
from eagle_aot.runtime_runner.serve.api.responses_api.requests import ResponsesRequest
from eagle_aot.runtime_runner.serve.service import ServedModel

log = logging.getLogger(__name__)
T = TypeVar("T", bound=ModelRequest)
R = TypeVar("R")
MAX_ITEMS = 1 << 19
"""The limit of commas and opening brackets in a body, its texts included: so many items take less
than 100 MB."""
MAX_READING = 256 << 20
"""The limit of bytes of all bodies that are being read. Bodies of up to `SMALL` do not count."""
SMALL = 1 << 16
MAX_LOGGED = 256
"""The number of different warnings that are written to the log, each once."""
CANNOT_DECODE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A valid body, its prompts, and the parameters of each answer to a prompt. Requests with the
    same `conversation` have a common prefix. `warnings` say what of it has no effect."""

    request: GenerationRequest
    warnings: Sequence[str]
    conversation: str | None
    prompts: Sequence[Prompt]
    parameters: Sequence[GenerationParams]


class BodyReader:
    """Reads the bodies of requests to one model."""

    def __init__(self, model: ServedModel) -> None:
        self._model, self._reading = model, 0
        self._logged = set[str]()

    async def read(self, connection: Request, kind: type[GenerationRequest]) -> ParsedBody:
        """Return a body. Raises ApiError and EagleError for one that is too long or wrong."""
        authorization = connection.headers.get("authorization", "")
        return await self._read(connection, lambda body: self._parse(body, kind, authorization))

    async def read_response(self, connection: Request) -> tuple[ResponsesRequest, ParsedBody]:
        """Return a body of the Responses API, and what it is as that of a chat. Raises as `read`
        does."""
        authorization = connection.headers.get("authorization", "")

        def parse(content: bytes) -> tuple[ResponsesRequest, ParsedBody]:
            request, warnings = self._decode(content, ResponsesRequest)
            return request, self._parsed(request.chat(), warnings, authorization)

        return await self._read(connection, parse)

    async def read_struct(self, connection: Request, kind: type[T]) -> T:
        """Return a body that generates nothing. Raises as `read` does."""
        return await self._read(connection, lambda body: self._decode(body, kind)[0])

    async def _read(self, connection: Request, parse: Callable[[bytes], R]) -> R:
        """Return what `parse` makes of a body in a thread."""
        parts, length = list[bytes](), 0
        try:
            self._check_length(int(connection.headers.get("content-length", 0)))
            async for part in connection.stream():
                parts.append(part)
                length += len(part)
                self._reading += len(part)
                self._check_length(length)
            return await asyncio.to_thread(parse, b"".join(parts))
        except ClientDisconnect as error:
            raise ApiError(400, "the body breaks off") from error
        finally:
            self._reading -= length
            parts.clear()  # an exception's traceback would keep it

    def _check_length(self, length: int) -> None:
        if length > self._model.max_body:
            raise ApiError(413, f"the body is longer than {self._model.max_body} bytes")
        if length > SMALL and self._reading > MAX_READING:
            raise ApiError(503, "too many long bodies at once", "busy")

    def _parse(
        self, content: bytes, kind: type[GenerationRequest], authorization: str
    ) -> ParsedBody:
        request, warnings = self._decode(content, kind)
        return self._parsed(request, warnings, authorization)

    def _parsed(
        self, request: GenerationRequest, warnings: Sequence[str], authorization: str
    ) -> ParsedBody:
        prompts = request.prompts()
        salt = cache_salt(self._model, authorization, request.cache_salt)
        defaults = self._model.sampling_defaults
        parameters = request.parameters(self._model.context, salt, defaults)
        return ParsedBody(request, warnings, request.conversation(), prompts, parameters)

    def _decode(self, content: bytes, kind: type[T]) -> tuple[T, list[str]]:
        items = sum(map(content.count, (b",", b"[", b"{")))
        if items > MAX_ITEMS:
            raise ApiError(400, f"the body has {items} commas and brackets, {MAX_ITEMS} at most")
        request, warnings = decode(content, kind, strict=self._model.spec.strict)
        self._log(warnings)
        check_model(self._model, request.model)
        return request, warnings

    def _log(self, warnings: Sequence[str]) -> None:
        """Write each warning to the log when it comes first."""
        for line in warnings:
            if line not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(line)
                log.warning("%s", line)


def decode(content: bytes, kind: type[T], *, strict: bool) -> tuple[T, list[str]]:
    """Return the struct in a body, and warnings about it; a `strict` server has none. Raises
    ApiError for a body that is wrong, and for names that are refused."""
    try:
        body = decode_plain(content, kind)
        if not isinstance(body, dict):
            return convert(body, kind), []  # which raises
        reader = FieldReader(strict)
        reader.read(body, kind)
        return convert(body, kind, str_keys=True), [*reader.warnings]
    except CANNOT_DECODE as error:
        raise invalid_body(error) from error


def decode_plain(content: bytes, kind: type[msgspec.Struct]) -> Any:
    """Return a body as lists and dicts. Raises msgspec's errors."""
    try:
        return msgspec.json.decode(content)
    except msgspec.ValidationError:  # a number out of range, whose name only the struct knows
        describe(kind)
        msgspec.json.decode(content, type=kind)
        raise


def check_model(model: ServedModel, requested: str | None) -> None:
    """Raise ApiError for any other model than the served one; None is any model."""
    if requested not in (*model.names, None):
        line = f"model {requested!r}: not here, this is {model.name!r}"
        raise ApiError(404, one_line(line), "model_not_found", "model")
