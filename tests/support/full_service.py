"""A service that takes no request: those that pass all checks get status 429."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fastapi import FastAPI

from eagle_aot.common.prompts import Prompt
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.serve.answer_stream import AnswerStream
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.service import AnswerRequest, Service
from eagle_aot.runtime_runner.serve.spec import ServeSpec
from eagle_aot.runtime_runner.serve.tool_calls.chat_format import ChatFormat
from eagle_aot.runtime_runner.serve.worker import QueueFull
from support.chat_templates import byte_tokenizer

PASSED = 429
MODEL = "tiny"


class FullService:
    """Accepts no request, and keeps those that passed all checks."""

    draining, failure = False, None
    slots = pending = waiting = 0

    def __init__(
        self,
        max_body: int = 8 << 20,
        keys: tuple[str, ...] = (),
        tokenizer: Tokenizer | None = None,
        **options: Any,
    ) -> None:
        spec = ServeSpec(artifact=Path(MODEL), **options)
        self.metrics = Metrics(self)
        self.requests: list[AnswerRequest] = []
        self.model = cast(Any, SimpleNamespace(
            spec=spec, name=spec.model_names[0], names=spec.model_names, context=1024, created=0,
            max_body=max_body, read=self.read, keys=[key.encode() for key in keys],
            sampling_defaults=spec.sampling_defaults_of(Path(MODEL)),
            chat=ChatFormat(tokenizer or byte_tokenizer(None), spec.tool_call_parser),
        ))  # fmt: skip

    async def read(
        self, prompt: Prompt, *, raw: bool, template_values: object = None
    ) -> TokenizedPrompt:
        return TokenizedPrompt((1,))

    async def submit(self, request: AnswerRequest) -> AnswerStream:
        self.requests.append(request)
        raise QueueFull("full")

    @property
    def app(self) -> FastAPI:
        return make_app(cast(Service, self))

    def metric(self, name: str) -> float:
        """Return the value of a line of /metrics, 0 where there is none."""
        line = re.search(rf"^{re.escape(name)} (\S+)$", self.metrics.content.decode(), re.MULTILINE)
        return float(line[1]) if line else 0.0
