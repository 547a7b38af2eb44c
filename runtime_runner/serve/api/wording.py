"""Answers as the OpenAI API words them."""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from eagle_aot.common.token_bytes import TokenBytes
from eagle_aot.runtime_runner.frontend.result import Result
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.serve.answers import Piece
from eagle_aot.runtime_runner.serve.api.logprobs import Shown, of_chat, of_completion


def new_id(kind: str) -> str:
    """Of an answer."""
    return f"{kind}-{secrets.token_hex(12)}"


FINISH = {"context": "length"}
"""Reasons that the API has another word for."""
UNKNOWN = {"logprobs": None, "finish_reason": None}
"""Of a part of a choice, unless it says."""


class Wording(Protocol):
    """Of one answer's end point, for one request."""

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """All choices at once."""

    def start(self, index: int) -> dict[str, Any] | None:
        """What a stream says before a choice's first text, if anything."""

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        """More of a choice."""

    def end(self, index: int, result: Result) -> dict[str, Any]:
        """Of a choice."""

    def cost(self, results: Sequence[Result]) -> dict[str, Any]:
        """At the end of a stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Named(ABC):
    """What all objects of one answer share, which has `n` choices for each prompt. `shown` is one
    for each choice, none where no log probabilities were asked for."""

    model: str
    fingerprint: str
    bytes_of: TokenBytes
    n: int = 1
    shown: Sequence[Shown] = ()
    created: int = field(default_factory=lambda: int(time.time()))

    @abstractmethod
    def _worded(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """As the end point has them."""

    def _logprobs(self, index: int, result: Result) -> dict[str, Any] | None:
        """Of a whole choice."""
        if not self.shown:
            return None
        shown = self.shown[index]
        told = [*(result.prompt_logprobs or ()), *(result.logprobs or ())]
        found = shown.more(told, result.text or "")
        return self._worded([*found, *shown.rest(result)])

    def _more_logprobs(self, index: int, piece: Piece) -> dict[str, Any] | None:
        """Of what a piece shows."""
        found = self.shown[index].more(piece.logprobs, piece.text) if self.shown else []
        return self._worded(found) if found else None

    def _last_logprobs(self, index: int, result: Result) -> dict[str, Any] | None:
        """Of what no piece has shown."""
        found = self.shown[index].rest(result) if self.shown else []
        return self._worded(found) if found else None

    def _object(self, name: str, number: str, choices: list[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": number,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatWording(Named):
    """Of /v1/chat/completions."""

    number: str = field(default_factory=lambda: new_id("chatcmpl"))

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        choices = [
            choice(i, result, self._logprobs(i, result), message=said(result))
            for i, result in enumerate(results)
        ]
        return self._object("chat.completion", self.number, choices, usage=usage(results, self.n))

    def start(self, index: int) -> dict[str, Any] | None:
        return self._chunk(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        told = self._more_logprobs(index, piece)
        return self._chunk(index, {"content": piece.text}, logprobs=told)

    def end(self, index: int, result: Result) -> dict[str, Any]:
        return self._chunk(index, {}, **ending(result, self._last_logprobs(index, result)))

    def cost(self, results: Sequence[Result]) -> dict[str, Any]:
        return self._object("chat.completion.chunk", self.number, [], usage=usage(results, self.n))

    def _worded(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return of_chat(logprobs, self.bytes_of)

    def _chunk(self, index: int, delta: dict[str, Any], **known: Any) -> dict[str, Any]:
        part = {"index": index, "delta": delta, **UNKNOWN, **known}
        return self._object("chat.completion.chunk", self.number, [part])


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionWording(Named):
    """Of /v1/completions."""

    number: str = field(default_factory=lambda: new_id("cmpl"))

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        choices = [
            choice(i, result, self._logprobs(i, result), text=result.text)
            for i, result in enumerate(results)
        ]
        return self._object("text_completion", self.number, choices, usage=usage(results, self.n))

    def start(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        return self._chunk(index, piece.text, logprobs=self._more_logprobs(index, piece))

    def end(self, index: int, result: Result) -> dict[str, Any]:
        return self._chunk(index, "", **ending(result, self._last_logprobs(index, result)))

    def cost(self, results: Sequence[Result]) -> dict[str, Any]:
        return self._object("text_completion", self.number, [], usage=usage(results, self.n))

    def _worded(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return of_completion(logprobs, self.bytes_of)

    def _chunk(self, index: int, text: str, **known: Any) -> dict[str, Any]:
        part = {"index": index, "text": text, **UNKNOWN, **known}
        return self._object("text_completion", self.number, [part])


def said(result: Result) -> dict[str, Any]:
    """A turn of a chat."""
    return {"role": "assistant", "content": result.text}


def choice(
    index: int, result: Result, logprobs: dict[str, Any] | None, **content: Any
) -> dict[str, Any]:
    """One of an answer."""
    return {"index": index, **content, **ending(result, logprobs)}


def ending(result: Result, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    """What is known of a choice at its end; the reason is in the API's words."""
    reason = FINISH.get(result.finish_reason, result.finish_reason)
    return {"logprobs": logprobs, "finish_reason": reason, "seed": result.parameters.seed}


def usage(results: Sequence[Result], n: int) -> dict[str, Any]:
    """Tokens of a request's prompts, each once, and of all its answers, `n` of each prompt, and
    what speculation did for them."""
    firsts = results[::n]
    prompt = sum(result.prompt_tokens for result in firsts)
    generated = sum(len(result.token_ids) for result in results)
    stats = [result.stats for result in results]
    rounds = sum(one.rounds for one in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(r.cached_tokens for r in firsts)},
        "speculation": {
            "rounds": rounds,
            "drafted": sum(one.drafted for one in stats),
            "accepted": sum(one.accepted for one in stats),
            "tau": sum(one.emitted for one in stats) / rounds if rounds else None,
        },
    }
