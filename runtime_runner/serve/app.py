"""The endpoints."""

import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST

from eagle_aot.common.prompts import check_messages
from eagle_aot.common.text import one_line
from eagle_aot.runtime_runner.serve.asked import ChatAsked, CompletionAsked
from eagle_aot.runtime_runner.serve.errors import ApiError, add_handlers
from eagle_aot.runtime_runner.serve.respond import respond
from eagle_aot.runtime_runner.serve.service import Service
from eagle_aot.runtime_runner.serve.wording import ChatWording, CompletionWording

PAGE = Path(__file__).parent / "page"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def make_app(service: Service) -> FastAPI:
    """Of one artifact."""
    app = FastAPI(
        title="eagle-aot", max_body_size=service.settings.body_bytes, docs_url=None, redoc_url=None
    )
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
        draining = service.worker.draining
        return JSONResponse({"status": "draining" if draining else "ok"}, 503 if draining else 200)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.content, media_type=CONTENT_TYPE_LATEST)

    return router


def endpoints(service: Service) -> APIRouter:
    """Of the OpenAI API."""
    router = APIRouter(prefix="/v1")
    model = service.settings.model
    card = {"id": model, "object": "model", "created": service.created, "owned_by": "eagle-aot"}

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @router.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        check_model(service, name)
        return card

    @router.post("/chat/completions", response_model=None)
    async def chat(asked: ChatAsked, request: Request) -> Response:
        check_model(service, asked.model)
        prompt = await service.encode(check_messages(asked.conversation()), raw=False)
        wording = ChatWording(model=model, fingerprint=service.fingerprint)
        answers = service.begin([prompt], asked.most_tokens, asked.options(), asked.trace)
        return await respond(request, asked, answers, wording)

    @router.post("/completions", response_model=None)
    async def completions(asked: CompletionAsked, request: Request) -> Response:
        check_model(service, asked.model)
        prompts = [await service.encode(prompt, raw=True) for prompt in asked.prompts()]
        wording = CompletionWording(model=model, fingerprint=service.fingerprint)
        answers = service.begin(prompts, asked.max_tokens, asked.options(), asked.trace)
        return await respond(request, asked, answers, wording)

    return router


def key_check(service: Service) -> Callable[[Request], None]:
    """Raises ApiError for a request without one of the keys, if there are any."""
    keys = [key.encode() for key in service.settings.keys]

    def check(request: Request) -> None:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        equal = [hmac.compare_digest(shown.strip().encode(), key) for key in keys]
        if keys and not (scheme.lower() == "bearer" and any(equal)):
            raise ApiError(401, "no valid API key: send Authorization: Bearer KEY", "invalid_key")

    return check


def check_model(service: Service, name: str) -> None:
    """Raises ApiError for any but the one there is."""
    if name != service.settings.model:
        line = f"model {name!r}: not here, this is {service.settings.model!r}"
        raise ApiError(404, one_line(line), "model_not_found", "model")
