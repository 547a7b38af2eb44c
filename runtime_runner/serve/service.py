"""Requests of one artifact, from whatever endpoint to the engine and back."""

import asyncio
import functools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eagle_aot.artifact import MANIFEST
from eagle_aot.artifact.files import file_record
from eagle_aot.common.prompts import Prompt
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.runtime_runner.generation import Generation
from eagle_aot.runtime_runner.results.result import Result
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.serve.answers import Answers, Writer
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.worker import Heard, Worker
from eagle_aot.runtime_runner.text.detokenizer import Detokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Of a server. `model` is what requests call the artifact, `keys` are those that they may show,
    none where they need not; times are in seconds, sizes in bytes."""

    model: str
    keys: tuple[str, ...] = ()
    most_waiting: int = 64
    request_seconds: float = 600.0
    body_bytes: int = 8 << 20


class Service:
    """What all endpoints share."""

    def __init__(self, runner: Runner, settings: Settings) -> None:
        self.runner, self.settings = runner, settings
        self.worker = Worker(runner.engine, settings.most_waiting)
        self.metrics = Metrics(self.worker)
        self.created = int(time.time())
        self.fingerprint = "eagle-" + file_record(runner.directory / MANIFEST).sha256[:12]
        """Of the artifact: with it, prompt, parameters and seed a text is determined."""
        self._tokenizer = Tokenizer(runner.directory)  # the engine's thread decodes with another
        self._tokenizing = asyncio.Lock()

    async def encode(self, prompt: Prompt, *, raw: bool) -> list[int]:
        """Token ids of a prompt. Raises PromptError as `Tokenizer.encode` does."""
        if isinstance(prompt, list) and (not prompt or isinstance(prompt[0], int)):
            return [part for part in prompt if isinstance(part, int)]
        async with self._tokenizing:  # its state is no two threads'
            return await asyncio.to_thread(self._tokenizer.encode, prompt, raw)

    def begin(
        self,
        prompts: Sequence[list[int]],
        most_tokens: int | None,
        options: dict[str, Any],
        trace: bool = False,
    ) -> Answers:
        """Begin an answer to each prompt; somebody must close them. Raises what `Runner.generate`
        raises, Full and Draining."""
        answers = Answers(len(prompts), self.settings.request_seconds)
        try:
            decode = self.runner.tokenizer.decode
            traces = [Detokenizer(decode) if trace else None for _ in prompts]
            writers = [Writer(answers, index, one) for index, one in enumerate(traces)]
            pairs = zip(prompts, writers, strict=True)
            generations = [self._generation(*pair, most_tokens, options) for pair in pairs]
            ends = [self._counted(writer) for writer in writers]
            numbers = self.worker.submit(*zip(generations, ends, strict=True))
        except BaseException:
            answers.close()
            raise
        answers.cancel = functools.partial(self.worker.cancel, *numbers)
        return answers

    def _generation(
        self, ids: list[int], writer: Writer, most_tokens: int | None, options: dict[str, Any]
    ) -> Generation:
        most = most_tokens or self.runner.constants.max_seq_len
        generation = self.runner._generation(
            ids, most, on_text=writer.on_text, reuse=True, **options
        )
        return replace(generation, on_round=writer.on_round)

    def _counted(self, writer: Writer) -> Callable[[Heard], None]:
        def end(heard: Heard) -> None:
            writer.on_end(heard)
            if isinstance(heard, Result):
                self.metrics.ended(heard, writer.times)
            else:
                self.metrics.failed("failed")

        return end


def new_id(kind: str) -> str:
    """Of an answer."""
    return f"{kind}-{secrets.token_hex(12)}"
