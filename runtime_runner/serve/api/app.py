"""The application: its endpoints, its page, and what all requests are checked for."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware

from eagle_aot import __version__
from eagle_aot.common.structs import describe
from eagle_aot.runtime_runner.serve.api.access import AccessCheck
from eagle_aot.runtime_runner.serve.api.bodies import BodyReader, ParsedBody, check_model
from eagle_aot.runtime_runner.serve.api.errors import ErrorReporter, ErrorResponse
from eagle_aot.runtime_runner.serve.api.requests import ChatCompletionRequest, CompletionRequest
from eagle_aot.runtime_runner.serve.api.respond import respond
from eagle_aot.runtime_runner.serve.api.responses import (
    ChatResponseBuilder,
    ResponseBuilder,
    VisibleLogprobs,
)
from eagle_aot.runtime_runner.serve.api.responses_api.events import response_events
from eagle_aot.runtime_runner.serve.api.responses_api.output import ResponsesBuilder
from eagle_aot.runtime_runner.serve.api.responses_api.requests import ResponsesRequest
from eagle_aot.runtime_runner.serve.api.tokens import (
    DETOKENIZE,
    TOKENIZE,
    DetokenizeRequest,
    TokenizeRequest,
    token_endpoints,
)
from eagle_aot.runtime_runner.serve.service import AnswerRequest, Service, check_forms

PAGE = Path(__file__).parent / "page"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
PREFIX, CHAT, COMPLETION, RESPONSES = "/v1", "/chat/completions", "/completions", "/responses"
BODIES: dict[str, type[msgspec.Struct]] = {
    PREFIX + CHAT: ChatCompletionRequest,
    PREFIX + COMPLETION: CompletionRequest,
    PREFIX + RESPONSES: ResponsesRequest,
    TOKENIZE: TokenizeRequest,
    DETOKENIZE: DetokenizeRequest,
}
SCHEMAS = "#/components/schemas/"


def make_app(service: Service) -> FastAPI:
    """Return the application of one artifact."""
    app = FastAPI(title="eagle-aot", redirect_slashes=False, docs_url=None, redoc_url=None)
    model, errors = service.model, ErrorReporter(service.metrics)
    bodies = BodyReader(model)
    errors.add_handlers(app)
    app.include_router(open_endpoints(service))
    app.include_router(token_endpoints(model, bodies))
    api = api_endpoints(service, bodies)
    app.include_router(api, prefix=PREFIX)
    app.include_router(api, include_in_schema=False)  # for clients whose base URL has no prefix
    app.add_middleware(AccessCheck, spec=model.spec, keys=model.keys, errors=errors)
    if origins := model.spec.allow_origin:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    without_bodies = app.openapi
    app.openapi = lambda: with_bodies(without_bodies())  # type: ignore[method-assign]
    return app


def with_bodies(openapi: dict[str, Any]) -> dict[str, Any]:
    """Return a description of the application with the structs of bodies and of errors."""
    kinds = (*BODIES.values(), ErrorResponse)
    for kind in kinds:
        describe(kind)
    _, components = msgspec.json.schema_components(kinds, ref_template=SCHEMAS + "{name}")
    openapi.setdefault("components", {})["schemas"] = components
    for path, operations in openapi["paths"].items():
        for operation in operations.values():
            operation["responses"] |= {
                status: content("An error.", ErrorResponse) for status in ("4XX", "5XX")
            }
        if path in BODIES:
            operations["post"]["requestBody"] = content("The request.", BODIES[path])
    return openapi


def content(description: str, kind: type) -> dict[str, Any]:
    """Return the description of a body in JSON."""
    schema = {"$ref": SCHEMAS + kind.__name__}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def open_endpoints(service: Service) -> APIRouter:
    """Return the endpoints that `AccessCheck` opens without a key."""
    router = APIRouter()
    router.mount("/page", StaticFiles(directory=PAGE))

    @router.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    @router.get("/health")
    @router.get("/ping")
    async def health() -> JSONResponse:
        status = "failed" if service.failure else "draining" if service.draining else "ok"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.content, media_type=CONTENT_TYPE_LATEST)

    return router


def api_endpoints(service: Service, bodies: BodyReader) -> APIRouter:
    """Return the endpoints of the OpenAI API, without its prefix."""
    router, model = APIRouter(), service.model

    def card(name: str) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": model.created, "owned_by": "eagle-aot"}
        card |= {"root": model.name, "max_model_len": model.context}
        return card | {"sampling_defaults": model.sampling_defaults}

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in model.names]}

    @router.get("/models/{requested:path}")
    async def get_model(requested: str) -> dict[str, Any]:
        check_model(model, requested)
        return card(requested)

    @router.post(CHAT, response_model=None)
    async def chat(connection: Request) -> Response:
        body = await bodies.read(connection, ChatCompletionRequest)
        return await answer(service, connection, body)

    @router.post(COMPLETION, response_model=None)
    async def completions(connection: Request) -> Response:
        body = await bodies.read(connection, CompletionRequest)
        return await answer(service, connection, body)

    @router.post(RESPONSES, response_model=None)
    async def responses(connection: Request) -> Response:
        request, body = await bodies.read_response(connection)
        return await answer(service, connection, body, request)

    return router


async def answer(
    service: Service,
    connection: Request,
    body: ParsedBody,
    response: ResponsesRequest | None = None,
) -> Response:
    """Answer each prompt with all parameters, in the form of the Responses API if `response` is its
    request."""
    model, wanted = service.model, body.request
    if not isinstance(wanted, ChatCompletionRequest):
        turn = None
        prompts = [await model.read(prompt, raw=True) for prompt in body.prompts]
        prompts = [wanted.truncated(prompt, model.context) for prompt in prompts]
        pairs = [(prompt, each) for prompt in prompts for each in body.parameters]
    else:
        turn = wanted.turn(model.chat)
        messages, values = turn.messages(wanted.prompts()[0]), turn.template_values
        prompt = await model.read(messages, raw=False, template_values=values)
        prompt = wanted.truncated(prompt, model.context)
        pairs = [(prompt, each) for each in turn.parameters(prompt.tokens, body.parameters)]
    request = AnswerRequest(prompts=pairs, trace=bool(wanted.trace), conversation=body.conversation)
    check_forms(pairs)
    stream = await service.submit(request)
    all_tokens = wanted.num_prompt_logprobs is not None
    visible = [VisibleLogprobs(all_tokens=all_tokens) for _ in pairs]
    options: dict[str, Any] = {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "bytes_of": model.tokenizer.bytes_of,
        "prompts": [prompt.tokens for prompt, _ in pairs],
        "n": len(body.parameters),
        "warnings": body.warnings,
        "with_ids": bool(wanted.return_token_ids),
        "visible_logprobs": visible if wanted.num_logprobs is not None else (),
    }
    if wanted.request_id:
        options["suffix"] = wanted.request_id
    if turn is None:
        return await respond(connection, wanted, stream, ResponseBuilder(**options))
    answers = {index: turn.answer(prompt.tokens) for index, (prompt, _) in enumerate(pairs)}
    options |= {"answers": answers, "reasoning_tokens": model.chat.reasoning_tokens}
    if response is None:
        return await respond(connection, wanted, stream, ChatResponseBuilder(**options))
    builder = ResponsesBuilder(**options, request=response)
    return await respond(connection, wanted, stream, builder, partial(response_events, builder))
