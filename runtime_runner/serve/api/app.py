"""The application: its endpoints, its page, what all requests are checked for, and its server."""

import asyncio
import hmac
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from eagle_aot.common.errors import EagleError
from eagle_aot.common.prompts import Message, check_messages
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.serve.api.errors import ApiError, ErrorResponse, add_handlers
from eagle_aot.runtime_runner.serve.api.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
)
from eagle_aot.runtime_runner.serve.api.respond import respond
from eagle_aot.runtime_runner.serve.api.responses import (
    ChatResponseBuilder,
    ResponseBuilder,
    VisibleLogprobs,
)
from eagle_aot.runtime_runner.serve.service import AnswerRequest, LocalService, Service
from eagle_aot.runtime_runner.serve.spec import ServeSpec

PAGE = Path(__file__).parent / "page"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
SHUTDOWN_SECONDS = 5
"""The time for sending responses after all requests have ended."""


def make_app(service: Service) -> FastAPI:
    """Return the application of one artifact."""
    app = FastAPI(
        title="eagle-aot",
        responses={"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}},
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, max_bytes=service.model.spec.max_body)
    add_handlers(app)
    app.include_router(open_endpoints(service))
    app.include_router(api_endpoints(service), dependencies=[Depends(key_check(service))])
    return app


class BodyLimit:
    """Middleware that refuses a request when more than `max_bytes` of its body are read. FastAPI's
    own limit answers in plain text."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = 0

        async def limited() -> AsgiMessage:
            nonlocal length
            message = await receive()
            length += len(message.get("body", b""))
            if length > self._max_bytes:
                raise HTTPException(413, f"the body is longer than {self._max_bytes} bytes")
            return message

        await self._app(scope, limited, send)


def open_endpoints(service: Service) -> APIRouter:
    """Return the endpoints that need no key."""
    router = APIRouter()
    router.mount("/page", StaticFiles(directory=PAGE))

    @router.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    @router.get("/health")
    async def health() -> JSONResponse:
        status = "failed" if service.failure else "draining" if service.draining else "ok"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.content, media_type=CONTENT_TYPE_LATEST)

    return router


def api_endpoints(service: Service) -> APIRouter:
    """Return the endpoints of the OpenAI API."""
    router = APIRouter(prefix="/v1")
    model, name = service.model, service.model.name
    card = {"id": name, "object": "model", "created": model.created, "owned_by": "eagle-aot"}

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @router.get("/models/{requested:path}")
    async def get_model(requested: str) -> dict[str, Any]:
        check_model(name, requested)
        return card

    @router.post("/chat/completions", response_model=None)
    async def chat(body: ChatCompletionRequest, connection: Request) -> Response:
        check_model(name, body.model)
        messages = check_messages(body.conversation())
        parameters = body.parameters(body.max_new_tokens(model.context))
        prompts = [await model.read(messages, raw=False)]
        key = conversation_key(messages)
        return await answer(service, connection, body, prompts, parameters, key)

    @router.post("/completions", response_model=None)
    async def completions(body: CompletionRequest, connection: Request) -> Response:
        check_model(name, body.model)
        parameters = body.parameters(body.max_new_tokens())
        prompts = [await model.read(prompt, raw=True) for prompt in body.prompts()]
        return await answer(service, connection, body, prompts, parameters)

    return router


async def answer(
    service: Service,
    connection: Request,
    body: GenerationRequest,
    prompts: Sequence[TokenizedPrompt],
    parameters: Sequence[GenerationParams],
    conversation: str | None = None,
) -> Response:
    """Answer each prompt with all parameters."""
    pairs = [(prompt, each) for prompt in prompts for each in parameters]
    request = AnswerRequest(prompts=pairs, trace=body.trace, conversation=conversation)
    stream, model = service.submit(request), service.model
    all_tokens = body.num_prompt_logprobs is not None
    visible = [VisibleLogprobs(all_tokens=all_tokens) for _ in pairs]
    is_chat = isinstance(body, ChatCompletionRequest)
    builder = (ChatResponseBuilder if is_chat else ResponseBuilder)(
        model=model.name,
        fingerprint=model.fingerprint,
        bytes_of=model.tokenizer.bytes_of,
        n=len(parameters),
        visible_logprobs=visible if body.num_logprobs is not None else (),
    )
    return await respond(connection, body, stream, builder)


def key_check(service: Service) -> Callable[[Request], None]:
    """Return a function that raises ApiError for a request without one of the keys, if there are
    any."""
    keys = service.model.keys

    def check(request: Request) -> None:
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        sent = credentials.strip().encode("latin-1")  # as headers are decoded
        equal = [hmac.compare_digest(sent, key) for key in keys]
        if keys and not (scheme.lower() == "bearer" and any(equal)):
            raise ApiError(401, "no valid API key: send Authorization: Bearer KEY", "invalid_key")

    return check


def conversation_key(messages: Sequence[Message]) -> str:
    """Return what all requests of a conversation share: the messages up to the user's first."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "user")
    return json.dumps(messages[: first + 1])


def check_model(name: str, requested: str) -> None:
    """Raise ApiError for any other model than the served one."""
    if name != requested:
        line = f"model {requested!r}: not here, this is {name!r}"
        raise ApiError(404, one_line(line), "model_not_found", "model")


class Server(uvicorn.Server):
    """A server that stops accepting requests at the first signal and finishes those it has. At the
    second signal it stops at once."""

    def __init__(self, config: uvicorn.Config, service: LocalService) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        worker = self._service.worker
        if worker.draining:
            self.force_exit = True
        worker.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called every tenth of a second."""
        worker = self._service.worker
        if worker.failure is not None:
            worker.end_all(EagleError("the server has failed"))
            return True
        if worker.draining and (self.force_exit or not worker.pending):
            return True
        return await super().on_tick(counter)


def serve(runner: Runner, spec: ServeSpec, keys: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT. Raises EagleError where the address cannot be used."""
    asyncio.run(_serve(LocalService(runner, spec, keys), spec))


async def _serve(service: LocalService, spec: ServeSpec) -> None:
    config = uvicorn.Config(
        make_app(service),
        host=spec.host,
        port=spec.port,
        log_config=None,
        lifespan="off",  # nothing begins or ends with it
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    service.worker.start()
    try:
        await Server(config, service).serve()
        if (failure := service.failure) is not None:
            raise EagleError(f"the engine failed: {failure}: the log says more")
    except SystemExit as error:  # how uvicorn reports it
        raise EagleError(
            f"{spec.host}:{spec.port}: cannot be listened on, as the log says: take another --port "
            "or --host"
        ) from error
    finally:
        service.worker.close()
