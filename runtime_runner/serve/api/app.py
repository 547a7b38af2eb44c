"""The endpoints."""

import hmac
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST

from eagle_aot.common.prompts import Message, check_messages
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.serve.answers import Answers
from eagle_aot.runtime_runner.serve.api.asked import Asked, ChatAsked, CompletionAsked
from eagle_aot.runtime_runner.serve.api.body_limit import BodyLimit
from eagle_aot.runtime_runner.serve.api.errors import ApiError, Failure, add_handlers
from eagle_aot.runtime_runner.serve.api.logprobs import Shown
from eagle_aot.runtime_runner.serve.api.respond import respond
from eagle_aot.runtime_runner.serve.api.wording import ChatWording, CompletionWording, Named
from eagle_aot.runtime_runner.serve.service import Model, Service, Work

W = TypeVar("W", bound=Named)
PAGE = Path(__file__).parent / "page"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def make_app(service: Service) -> FastAPI:
    """Of one artifact."""
    app = FastAPI(
        title="eagle-aot",
        responses={"4XX": {"model": Failure}, "5XX": {"model": Failure}},
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, most=service.model.settings.body_bytes)
    add_handlers(app)
    app.include_router(open_endpoints(service))
    app.include_router(endpoints(service), dependencies=[Depends(key_check(service))])
    return app


def open_endpoints(service: Service) -> APIRouter:
    """Those that need no key."""
    router = APIRouter()
    router.mount("/page", StaticFiles(directory=PAGE))

    @router.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    @router.get("/health")
    async def health() -> JSONResponse:
        draining = service.draining
        return JSONResponse({"status": "draining" if draining else "ok"}, 503 if draining else 200)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.content, media_type=CONTENT_TYPE_LATEST)

    return router


def endpoints(service: Service) -> APIRouter:
    """Of the OpenAI API."""
    router = APIRouter(prefix="/v1")
    model, name = service.model, service.model.settings.model
    card = {"id": name, "object": "model", "created": model.created, "owned_by": "eagle-aot"}

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @router.get("/models/{asked:path}")
    async def one_model(asked: str) -> dict[str, Any]:
        check_model(name, asked)
        return card

    @router.post("/chat/completions", response_model=None)
    async def chat(asked: ChatAsked, request: Request) -> Response:
        check_model(name, asked.model)
        messages = check_messages(asked.conversation())
        answers = asked.parameters(asked.most_tokens(model.context))
        prompt = await model.read(messages, raw=False)
        begun = service.begin(
            Work(
                asked=[(prompt, answer) for answer in answers],
                trace=asked.trace,
                conversation=beginning(messages),
            )
        )
        return await respond(request, asked, begun, wording(ChatWording, model, asked, begun))

    @router.post("/completions", response_model=None)
    async def completions(asked: CompletionAsked, request: Request) -> Response:
        check_model(name, asked.model)
        answers = asked.parameters(asked.most_tokens(), echo=asked.echo)
        prompts = [await model.read(prompt, raw=True) for prompt in asked.prompts()]
        every = [(prompt, answer) for prompt in prompts for answer in answers]
        begun = service.begin(Work(asked=every, trace=asked.trace))
        return await respond(request, asked, begun, wording(CompletionWording, model, asked, begun))

    return router


def wording(kind: type[W], model: Model, asked: Asked, answers: Answers) -> W:
    """Of all of a request's answers."""
    told, every = asked.most_logprobs is not None, asked.most_prompt_logprobs is not None
    return kind(
        model=model.settings.model,
        fingerprint=model.fingerprint,
        bytes_of=model.bytes_of,
        n=asked.n,
        shown=[Shown(every=every) for _ in range(answers.count)] if told else (),
    )


def key_check(service: Service) -> Callable[[Request], None]:
    """Raises ApiError for a request without one of the keys, if there are any."""
    keys = [key.encode() for key in service.model.settings.keys]

    def check(request: Request) -> None:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        sent = shown.strip().encode("latin-1")  # as headers are decoded
        equal = [hmac.compare_digest(sent, key) for key in keys]
        if keys and not (scheme.lower() == "bearer" and any(equal)):
            raise ApiError(401, "no valid API key: send Authorization: Bearer KEY", "invalid_key")

    return check


def beginning(messages: Sequence[Message]) -> str:
    """What all requests of a conversation share: all up to the first turn of the user."""
    first = next(i for i, message in enumerate(messages) if message["role"] == "user")
    return json.dumps(messages[: first + 1])


def check_model(name: str, asked: str) -> None:
    """Raises ApiError for any but the one there is."""
    if name != asked:
        line = f"model {asked!r}: not here, this is {name!r}"
        raise ApiError(404, one_line(line), "model_not_found", "model")
