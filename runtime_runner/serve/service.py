"""Requests of one artifact, from whatever endpoint to an engine and back."""

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
from eagle_aot.common.token_bytes import TokenBytes
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.prompt_reader import PromptReader
from eagle_aot.runtime_runner.frontend.stream import Detokenizer
from eagle_aot.runtime_runner.images.picture import PlacedPrompt
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.serve.answers import Answers, Writer
from eagle_aot.runtime_runner.serve.host_time import HostTime
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.worker import Worker


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Of a server. `model` is what requests call the artifact, `keys` are those that they may show,
    none where they need not; times are in seconds, sizes in bytes."""

    model: str
    keys: tuple[str, ...] = ()
    most_waiting: int = 64
    request_seconds: float = 600.0
    body_bytes: int = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Answers to give, each to a prompt that is read; requests of one `conversation` begin alike.
    With `trace`, their pieces say which tokens were drafted."""

    asked: Sequence[tuple[PlacedPrompt, GenerationParams]]
    trace: bool = False
    conversation: str | None = None


class Service(Protocol):
    """What all endpoints share."""

    model: "Model"
    metrics: Metrics

    @property
    def draining(self) -> bool:
        """Whether no more work is taken."""

    def begin(self, work: Work) -> Answers:
        """Begin all answers; somebody must close them. Raises Full and Draining, and
        what `Runner.generate` raises, if not then the answers do."""


class Model:
    """What requests know of the artifact in `directory`."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """Raises ArtifactError where there is no tokenizer."""
        self.settings = settings
        self.created = int(time.time())
        manifest = Manifest.read(directory)
        self.context = manifest.max_seq_len
        self.fingerprint = "eagle-" + file_record(directory / MANIFEST).sha256[:12]
        """With it, prompt, parameters and seed a text is determined."""
        longest = manifest.shapes[PREFILL].max_rows
        self._reader = PromptReader(directory, manifest.images, longest)
        self._tokenizer = self._reader.tokenizer
        self._tokenizing = asyncio.Lock()

    @property
    def bytes_of(self) -> TokenBytes:
        """What each token stands for by itself."""
        return self._tokenizer.bytes_of

    async def read(self, prompt: Prompt, *, raw: bool) -> PlacedPrompt:
        """Token ids of a prompt, and its pictures. Raises as `PromptReader.read` does."""
        async with self._tokenizing:  # its state is no two threads'
            return await asyncio.to_thread(self._reader.read, prompt, raw=raw)


class LocalService:
    """By the engine of this process."""

    def __init__(self, runner: Runner, settings: Settings) -> None:
        self.model = Model(runner.directory, settings)
        self.worker = Worker(runner.engine, settings.most_waiting)
        self.metrics = Metrics(self.worker, HostTime(self.worker))
        self._runner = runner

    @property
    def draining(self) -> bool:
        return self.worker.draining

    def begin(self, work: Work) -> Answers:
        count, decode = len(work.asked), self._runner.tokenizer.decode
        seconds = self.model.settings.request_seconds
        answers = Answers(count, seconds, self.metrics, self.worker.outbox)
        traces = [Detokenizer(decode) if work.trace else None for _ in range(count)]
        writers = [Writer(answers, index, trace) for index, trace in enumerate(traces)]
        try:
            pairs = zip(work.asked, writers, strict=True)
            watched = [(asked, writer.callbacks) for asked, writer in pairs]
            generations = [self._runner.generation(*asked, watch) for asked, watch in watched]
            ends = [writer.on_end for writer in writers]
            numbers = self.worker.submit(*zip(generations, ends, strict=True))
        except BaseException:
            answers.close()
            raise
        answers.cancel = functools.partial(self.worker.cancel, *numbers)
        return answers
