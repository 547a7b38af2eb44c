"""A server's clients: what they send, what they expect, and what happened to their requests."""

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from openai import APITimeoutError, OpenAI, OpenAIError, Stream
from openai.types.chat import ChatCompletionChunk
from rich.console import Console
from rich.progress import track

from eagle_aot.common.prompts import read_prompts
from eagle_aot.lab.checks.forms import FORMS
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams

TEMPERATURES = 0.0, 0.7, 1.0
LOGPROBS = None, None, None, None, 2
"""Every fifth request wants log probabilities, of so many of the likeliest tokens."""
STRUCTURES: list[dict[str, Any]] = [{}, *(each for form in FORMS.values() for each in (form, {}))]
"""Every second request has a form; their number goes with any temperature."""
FORM_NAMES = {"json_schema": "json", "choices": "choice"}
"""Where vLLM has other names."""
HALF_REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
TIMEOUT = 120.0  # seconds
LEAVES = 0.005, 1.0
"""When a client that does not wait for its answer leaves, in seconds."""


class ServedAnswer(NamedTuple):
    """A text, its number of tokens, and the log probabilities of the shown ones, where wanted."""

    text: str
    tokens: int
    logprobs: list[float | None]


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """A request, and its answer when it runs alone."""

    prompt: str
    parameters: GenerationParams
    answer: ServedAnswer


@dataclass(slots=True)
class RequestCounts:
    """How the requests of all clients ended; seconds until their first tokens and ends.

    `problems` describes requests that failed or differ.
    """

    ends: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    tokens: int = 0
    problems: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, end: str, problem: str = "") -> None:
        """Count how a request ended, from any thread."""
        with self._lock:
            self.ends[end] += 1
            if problem:
                self.problems.append(problem)

    def time(self, tokens: int, first: float | None, whole: float) -> None:
        """Add an answer's times, from any thread; `first` is None for an answer in one piece."""
        with self._lock:
            self.tokens += tokens
            self.whole.append(whole)
            if first is not None:
                self.first.append(first)


def expected_answers(
    artifact: Path, prompts_jsonl: Path, count: int, max_new_tokens: int
) -> list[ExpectedAnswer]:
    """Answer the first `count` prompts that are text, one by one, each with a seed of its own."""
    runner = load_artifact(artifact)
    texts = [p for p in read_prompts(None, None, prompts_jsonl) if isinstance(p, str)][:count]
    expected = []
    shown = track(texts, "alone", console=Console(stderr=True), transient=True)
    for seed, prompt in enumerate(shown):
        parameters = GenerationParams(
            temperature=TEMPERATURES[seed % len(TEMPERATURES)],
            logprobs=LOGPROBS[seed % len(LOGPROBS)],
            seed=seed,
            max_new_tokens=max_new_tokens,
            **STRUCTURES[seed % len(STRUCTURES)],
        )
        answer = answer_of(runner.answer(prompt, parameters))
        expected.append(ExpectedAnswer(prompt, parameters, answer))
    return expected


def answer_of(result: Result) -> ServedAnswer:
    """Return a result as a chat completion shows it, without the id that ended it."""
    logprobs = [token.logprob for token in result.logprobs or ()]
    shown = logprobs[:-1] if result.finish_reason == "stop" else logprobs
    return ServedAnswer(result.text or "", len(result.token_ids), [*shown])


class Client:
    """Sends one request after the other, whole or streamed.

    With `chaos` it leaves in the middle of some streams, or at any time, reads some slowly, and
    sends half of some requests.
    """

    def __init__(
        self,
        url: str,
        requests: Sequence[ExpectedAnswer],
        counts: RequestCounts,
        chaos: bool,
        seed: int,
    ) -> None:
        self._url, self._requests, self._counts, self._chaos = url, requests, counts, chaos
        self._rng = random.Random(seed)
        self._openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT)
        (self._model,) = (model.id for model in self._openai.models.list().data)

    def send_until(self, end: float) -> None:
        """Send requests until `time.monotonic` reaches `end`."""
        while time.monotonic() < end:
            request = self._rng.choice(self._requests)
            try:
                self._send(request)
            except (OpenAIError, httpx.HTTPError, OSError) as error:
                self._counts.note("failed", f"{type(error).__name__}: {error}")

    def _send(self, request: ExpectedAnswer) -> None:
        if self._chaos and self._rng.random() < 0.05:
            self._send_half()
        elif self._chaos and self._rng.random() < 0.1:
            self._leave(request)
        elif self._rng.random() < 0.5:
            self._stream(request)
        else:
            self._send_whole(request)

    def close(self) -> None:
        """Close its connections."""
        self._openai.close()

    def open_long(self, request: ExpectedAnswer) -> Stream[ChatCompletionChunk]:
        """Return a stream of as many tokens as fit the context."""
        options = self._options(request) | {"max_tokens": None, "logprobs": None}
        return self._openai.chat.completions.create(
            **options | {"top_logprobs": None, "extra_body": {"ignore_eos": True}}, stream=True
        )

    def _leave(self, request: ExpectedAnswer) -> None:
        """Disconnect at any time: while the request waits, in its prompt or in its answer."""
        try:
            self._send_whole(request, self._rng.uniform(*LEAVES))
        except APITimeoutError:
            self._counts.note("left")

    def _send_whole(self, request: ExpectedAnswer, timeout: float = TIMEOUT) -> None:
        started = time.monotonic()
        response = self._openai.chat.completions.create(**self._options(request), timeout=timeout)
        (choice,), usage = response.choices, response.usage
        content = choice.logprobs.content if choice.logprobs else None
        logprobs: list[float | None] = [token.logprob for token in content or ()]
        tokens = usage.completion_tokens if usage else 0
        answer = ServedAnswer(choice.message.content or "", tokens, logprobs)
        self._judge(request, answer, None, started)

    def _stream(self, request: ExpectedAnswer) -> None:
        started, first = time.monotonic(), None
        text, tokens, logprobs = "", 0, list[float | None]()
        leaves = self._chaos and self._rng.random() < 0.1
        slow = self._chaos and self._rng.random() < 0.1
        with self._openai.chat.completions.create(
            **self._options(request), stream=True, stream_options={"include_usage": True}
        ) as chunks:
            for chunk in chunks:
                first = first or time.monotonic() - started
                tokens = chunk.usage.completion_tokens if chunk.usage else 0
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    content = choice.logprobs.content if choice.logprobs else None
                    logprobs += [token.logprob for token in content or ()]
                if leaves and len(text) > 20:
                    return self._counts.note("left")
                time.sleep(0.05 if slow else 0)
        self._judge(request, ServedAnswer(text, tokens, logprobs), first, started)

    def _options(self, request: ExpectedAnswer) -> dict[str, Any]:
        parameters = request.parameters
        options: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": request.prompt}],
            "seed": parameters.seed,
            "temperature": parameters.temperature,
            "max_tokens": parameters.max_new_tokens,
        }
        if parameters.structure is not None:
            name, value = parameters.structure
            form = {FORM_NAMES.get(name, name): value}
            options["extra_body"] = {"structured_outputs": form}
        if parameters.logprobs is not None:
            options |= {"logprobs": True, "top_logprobs": parameters.logprobs}
        return options

    def _send_half(self) -> None:
        address = urlsplit(self._url)
        with socket.create_connection((address.hostname, address.port), TIMEOUT) as connection:
            connection.sendall(HALF_REQUEST)
        self._counts.note("half")

    def _judge(
        self, request: ExpectedAnswer, answer: ServedAnswer, first: float | None, started: float
    ) -> None:
        self._counts.time(answer.tokens, first, time.monotonic() - started)
        if answer == request.answer:
            self._counts.note("as alone")
        else:
            problem = f"{request.prompt!r}, {request.parameters}: {answer}, not {request.answer}"
            self._counts.note("differs", problem)
