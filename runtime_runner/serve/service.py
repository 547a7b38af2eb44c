"""Requests to one artifact, from an endpoint to an engine and back."""

import asyncio
import functools
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from eagle_aot.artifact import MANIFEST, PREFILL, Manifest
from eagle_aot.artifact.files import file_record
from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import Prompt, is_ids
from eagle_aot.common.tokenizer import NO_VALUES
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.prompt_reader import PromptReader, parts_of
from eagle_aot.runtime_runner.frontend.stream import Detokenizer
from eagle_aot.runtime_runner.images.prompt_image import TokenizedPrompt
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.serve.answer_stream import AnswerStream, StreamWriter
from eagle_aot.runtime_runner.serve.metrics import EngineTimeCollector, Metrics
from eagle_aot.runtime_runner.serve.spec import ServeSpec
from eagle_aot.runtime_runner.serve.tool_calls.chat_format import ChatFormat
from eagle_aot.runtime_runner.serve.worker import Draining, Submission, Worker

LEAST_STEP_SECONDS = 60.0
"""A step of the engine may take this long, or as long as a request: no request outlasts it."""
SHORT_TEXT = 1 << 16
"""Characters of a text that is encoded in parallel to any number of others, in 0.1 s."""
MAX_FORMS = 4_000_000
"""Characters of the forms of all answers to a request, for 200 MB of their grammars."""
BODY_BYTES, BODY_BYTES_PER_TOKEN, BODY_BYTES_OF_IMAGES = 1 << 20, 64, 32 << 20
"""A token of text takes up to 24 bytes as escapes, one of an id 8; there may be several prompts."""


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

    async def submit(self, request: AnswerRequest) -> AnswerStream:
        """Begin all answers. The caller must close the stream. Raises QueueFull, Draining, and what
        `Runner.generate` raises; or else the stream raises them."""


class ServedModel:
    """The artifact that requests name as their model."""

    def __init__(
        self,
        directory: Path,
        spec: ServeSpec,
        keys: Sequence[str],
        reader: PromptReader | None = None,
    ) -> None:
        """A request must have one of the API `keys`, unless there are none. Prompts are read by
        `reader`, if there is one. Raises ArtifactError where there is no tokenizer."""
        self.spec, self.names = spec, spec.model_names
        self.keys = [key.encode() for key in keys]
        self.created = int(time.time())
        manifest = Manifest.read(directory)
        self.context = manifest.max_seq_len
        self.fingerprint = "eagle-" + file_record(directory / MANIFEST).sha256[:12]
        """This fingerprint, a prompt, its parameters and a seed determine a text."""
        self.sampling_defaults = spec.sampling_defaults_of(directory)
        self.max_body = spec.max_body or default_max_body(manifest)
        max_rows = manifest.shapes[PREFILL].max_rows
        self._reader = reader or PromptReader(directory, manifest.images, max_rows, self.context)
        self.tokenizer = self._reader.tokenizer
        self.chat = ChatFormat(self.tokenizer, spec.tool_call_parser)
        self._long_texts = asyncio.Semaphore(background_threads())
        self._images = asyncio.Lock()  # their reader is not safe for two threads

    @property
    def name(self) -> str:
        """Its first name, which responses have."""
        return self.names[0]

    async def read(
        self, prompt: Prompt, *, raw: bool, template_values: Mapping[str, object] = NO_VALUES
    ) -> TokenizedPrompt:
        """Return the token ids of a prompt, and its images. Raises as `PromptReader.read` does.

        Short texts wait for no other prompt.
        """
        length, has_images = measured(prompt)
        is_long = length + len(str(template_values)) > SHORT_TEXT
        async with (
            self._long_texts if is_long else nullcontext(),
            self._images if has_images else nullcontext(),
        ):
            return await asyncio.to_thread(
                self._reader.read, prompt, raw=raw, template_values=template_values
            )


def background_threads() -> int:
    """Return how many threads may do long work next to that of the event loop."""
    return max(1, (os.cpu_count() or 1) - 1)


def check_forms(answers: Sequence[tuple[TokenizedPrompt, GenerationParams]]) -> None:
    """Raise SettingError where the forms of all answers to a request are too large together."""
    structure = answers[0][1].structure  # that of all answers
    size = 0 if structure is None else len(str(structure[1]))
    if size * len(answers) > MAX_FORMS:
        raise SettingError(
            f"{len(answers)} answers with a form of {size} characters each: {MAX_FORMS} at most"
        )


def measured(prompt: Prompt) -> tuple[int, bool]:
    """Return the number of characters of a prompt, and whether it has images."""
    if is_ids(prompt):
        return 0, False
    if isinstance(prompt, str):
        return len(prompt), False
    parts = [part for message in prompt for part in parts_of(message)]
    length = sum(len(part.get("text", "")) for part in parts)
    return length, any(part["type"] != "text" for part in parts)


def default_max_body(manifest: Manifest) -> int:
    """Return the bytes that a body may have: its texts escaped, its ids and its images."""
    images = 0 if manifest.images is None else BODY_BYTES_OF_IMAGES
    return BODY_BYTES + BODY_BYTES_PER_TOKEN * manifest.max_seq_len + images


class Streams(WeakSet[AnswerStream]):
    """Streams that an event loop reads, of requests to one service."""

    def end(self) -> None:
        """End them because the server ends."""
        for stream in self:
            stream.end(Draining("shutting down: the request was ended"))


class LocalService:
    """Answers requests with the engine of this process."""

    def __init__(self, runner: Runner, spec: ServeSpec, keys: Sequence[str] = ()) -> None:
        self.model = ServedModel(runner.directory, spec, keys, runner.reader)
        max_step_seconds = max(spec.request_timeout, LEAST_STEP_SECONDS)
        self.worker = Worker(runner.engine, spec.max_waiting, max_step_seconds)
        self.metrics = Metrics(self.worker, EngineTimeCollector(self.worker))
        self.streams = Streams()
        self._runner = runner
        self._forms = asyncio.Semaphore(background_threads())

    @property
    def draining(self) -> bool:
        return self.worker.draining

    @property
    def failure(self) -> str | None:
        return self.worker.failure

    async def submit(self, request: AnswerRequest) -> AnswerStream:
        seconds = self.model.spec.request_timeout
        stream = AnswerStream(len(request.prompts), seconds, self.metrics, self.worker.outbox)
        self.streams.add(stream)
        try:
            if any(parameters.structure for _, parameters in request.prompts):
                async with self._forms:
                    submissions = await asyncio.to_thread(self._submissions, request, stream)
            else:
                submissions = self._submissions(request, stream)
            numbers = self.worker.submit(*submissions)
        except BaseException:
            stream.close()
            raise
        stream.cancel = functools.partial(self.worker.cancel, *numbers)
        return stream

    def _submissions(self, request: AnswerRequest, stream: AnswerStream) -> list[Submission]:
        """Return the answers for the worker. A form takes up to half a second for each."""
        decode, submissions = self._runner.tokenizer.decode, list[Submission]()
        for index, (prompt, parameters) in enumerate(request.prompts):
            detokenizer = Detokenizer(decode, prompt.tokens) if request.trace else None
            writer = StreamWriter(stream, index, detokenizer)
            generation = self._runner.generation(prompt, parameters, writer.callbacks)
            submissions.append((generation, writer.on_end))
        return submissions
