"""One of a server's many clients."""

import random
import socket
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
from openai import OpenAI, OpenAIError

from eagle_aot.lab.checks.server.asked import Answer, Asked
from eagle_aot.lab.checks.server.tally import Tally

HALF = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
PATIENCE = 120.0  # seconds


class Client:
    """Asks one request after the other, whole or streamed. With `chaos` it vanishes in the middle
    of some streams, reads some slowly, and sends half of some requests."""

    def __init__(
        self, url: str, requests: Sequence[Asked], tally: Tally, chaos: bool, seed: int
    ) -> None:
        self._url, self._requests, self._tally, self._chaos = url, requests, tally, chaos
        self._rng = random.Random(seed)
        self._openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        (self._model,) = (model.id for model in self._openai.models.list().data)

    def ask_until(self, end: float) -> None:
        """Until the clock says so."""
        while time.monotonic() < end:
            one = self._rng.choice(self._requests)
            try:
                self._ask(one)
            except (OpenAIError, httpx.HTTPError, OSError) as error:
                self._tally.note("failed", f"{type(error).__name__}: {error}")

    def _ask(self, one: Asked) -> None:
        if self._chaos and self._rng.random() < 0.05:
            self._send_half()
        elif self._rng.random() < 0.5:
            self._stream(one)
        else:
            self._whole(one)

    def _whole(self, one: Asked) -> None:
        started = time.monotonic()
        answer = self._openai.chat.completions.create(**self._words(one))
        (choice,), usage = answer.choices, answer.usage
        content = choice.logprobs.content if choice.logprobs else None
        told: list[float | None] = [token.logprob for token in content or ()]
        tokens = usage.completion_tokens if usage else 0
        self._judge(one, Answer(choice.message.content or "", tokens, told), None, started)

    def _stream(self, one: Asked) -> None:
        started, first = time.monotonic(), None
        text, tokens, told = "", 0, list[float | None]()
        vanishes = self._chaos and self._rng.random() < 0.1
        slow = self._chaos and self._rng.random() < 0.1
        with self._openai.chat.completions.create(
            **self._words(one), stream=True, stream_options={"include_usage": True}
        ) as chunks:
            for chunk in chunks:
                first = first or time.monotonic() - started
                tokens = chunk.usage.completion_tokens if chunk.usage else 0
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    content = choice.logprobs.content if choice.logprobs else None
                    told += [token.logprob for token in content or ()]
                if vanishes and len(text) > 20:
                    return self._tally.note("vanished")
                time.sleep(0.05 if slow else 0)
        self._judge(one, Answer(text, tokens, told), first, started)

    def _words(self, one: Asked) -> dict[str, Any]:
        """Of a request."""
        asked = one.parameters
        words = {"temperature": asked.temperature, "max_tokens": asked.max_new_tokens}
        if asked.logprobs is not None:
            words |= {"logprobs": True, "top_logprobs": asked.logprobs}
        message = {"role": "user", "content": one.prompt}
        return {"model": self._model, "messages": [message], "seed": asked.seed, **words}

    def _send_half(self) -> None:
        address = urlsplit(self._url)
        with socket.create_connection((address.hostname, address.port), PATIENCE) as line:
            line.sendall(HALF)
        self._tally.note("half")

    def _judge(self, one: Asked, found: Answer, first: float | None, started: float) -> None:
        self._tally.time(found.tokens, first, time.monotonic() - started)
        if found == one.alone:
            self._tally.note("as alone")
        else:
            problem = f"{one.prompt!r}, {one.parameters}: {found}, not {one.alone}"
            self._tally.note("differs", problem)
