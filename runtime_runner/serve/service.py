"""Requests to one artifact, from an endpoint to an engine and back."""

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eagle_aot.artifact import MANIFEST, PREFILL, Manifest
from eagle_aot.artifact.files import file_record
from eagle_aot.common.prompts import Prompt
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.prompt_reader import PromptReader
from eagle_aot.runtime_runner.frontend.stream import Detokenizer
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.serve.answer_stream import AnswerStream, StreamWriter
from eagle_aot.runtime_runner.serve.metrics import EngineTimeCollector, Metrics
from eagle_aot.runtime_runner.serve.spec import ServeSpec
from eagle_aot.runtime_runner.serve.worker import Worker

LEAST_STEP_SECONDS = 60.0
"""A step of the engine may take this long, or as long as a request: no request outlasts it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerRequest:
    """Prompts to answer, each with its parameters. Requests with the same `conversation` have a
    common prefix. With `trace`, the parts of answers say which of their tokens were drafted."""

    prompts: Sequence[tuple[TokenizedPrompt, GenerationParams]]
    trace: bool = False
    conversation: str | None = None


class Service(Protocol):
    """A service that the endpoints submit requests to."""

    model: "ServedModel"
    metrics: Metrics

    @property
    def draining(self) -> bool:
        """Whether no more requests are accepted."""

    @property
    def failure(self) -> str | None:
        """Why no request will be served any more, None while they are."""

    def submit(self, request: AnswerRequest) -> AnswerStream:
        """Begin all answers. The caller must close the stream. Raises QueueFull, Draining, and what
        `Runner.generate` raises; or else the stream raises them."""


class ServedModel:
    """The artifact that requests name as their model."""

    def __init__(self, directory: Path, spec: ServeSpec, keys: Sequence[str]) -> None:
        """A request must have one of the API `keys`, unless there are none. Raises ArtifactError
        where there is no tokenizer."""
        self.spec, self.name = spec, spec.model_name
        self.keys = [key.encode() for key in keys]
        self.created = int(time.time())
        manifest = Manifest.read(directory)
        self.context = manifest.max_seq_len
        self.fingerprint = "eagle-" + file_record(directory / MANIFEST).sha256[:12]
        """This fingerprint, a prompt, its parameters and a seed determine a text."""
        max_rows = manifest.shapes[PREFILL].max_rows
        self._reader = PromptReader(directory, manifest.images, max_rows)
        self.tokenizer = self._reader.tokenizer
        self._reading = asyncio.Lock()

    async def read(self, prompt: Prompt, *, raw: bool) -> TokenizedPrompt:
        """Return the token ids of a prompt, and its images. Raises as `PromptReader.read` does."""
        async with self._reading:  # the reader is not safe for two threads
            return await asyncio.to_thread(self._reader.read, prompt, raw=raw)


class LocalService:
    """Answers requests with the engine of this process."""

    def __init__(self, runner: Runner, spec: ServeSpec, keys: Sequence[str] = ()) -> None:
        self.model = ServedModel(runner.directory, spec, keys)
        max_step_seconds = max(spec.request_timeout, LEAST_STEP_SECONDS)
        self.worker = Worker(runner.engine, spec.max_waiting, max_step_seconds)
        self.metrics = Metrics(self.worker, EngineTimeCollector(self.worker))
        self._runner = runner

    @property
    def draining(self) -> bool:
        return self.worker.draining

    @property
    def failure(self) -> str | None:
        return self.worker.failure

    def submit(self, request: AnswerRequest) -> AnswerStream:
        seconds, decode = self.model.spec.request_timeout, self._runner.tokenizer.decode
        stream = AnswerStream(len(request.prompts), seconds, self.metrics, self.worker.outbox)
        submissions = []
        try:
            for index, (prompt, parameters) in enumerate(request.prompts):
                detokenizer = Detokenizer(decode, prompt.tokens) if request.trace else None
                writer = StreamWriter(stream, index, detokenizer)
                generation = self._runner.generation(prompt, parameters, writer.callbacks)
                submissions.append((generation, writer.on_end))
            numbers = self.worker.submit(*submissions)
        except BaseException:
            stream.close()
            raise
        stream.cancel = functools.partial(self.worker.cancel, *numbers)
        return stream
