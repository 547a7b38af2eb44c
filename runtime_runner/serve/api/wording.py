"""Answers as the OpenAI API words them."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from eagle_aot.runtime_runner.results.result import Result


def new_id(kind: str) -> str:
    """Of an answer."""
    return f"{kind}-{secrets.token_hex(12)}"


FINISH = {"context": "length"}
"""Reasons that the API has another word for."""


class Wording(Protocol):
    """Of one answer's end point, for one request."""

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """All choices at once."""

    def start(self, index: int) -> dict[str, Any] | None:
        """What a stream says before a choice's first text, if anything."""

    def delta(self, index: int, text: str) -> dict[str, Any]:
        """More text of a choice."""

    def end(self, index: int, result: Result) -> dict[str, Any]:
        """Of a choice."""

    def cost(self, results: Sequence[Result]) -> dict[str, Any]:
        """At the end of a stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """What all objects of one answer share."""

    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

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
            choice(i, result, message={"role": "assistant", "content": result.text})
            for i, result in enumerate(results)
        ]
        return self._object("chat.completion", self.number, choices, usage=usage(results))

    def start(self, index: int) -> dict[str, Any] | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, None)

    def delta(self, index: int, text: str) -> dict[str, Any]:
        return self._chunk(index, {"content": text}, None)

    def end(self, index: int, result: Result) -> dict[str, Any]:
        return self._chunk(index, {}, finish_reason(result)) | {"seed": result.parameters.seed}

    def cost(self, results: Sequence[Result]) -> dict[str, Any]:
        return self._object("chat.completion.chunk", self.number, [], usage=usage(results))

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        part = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion.chunk", self.number, [part])


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionWording(Named):
    """Of /v1/completions."""

    number: str = field(default_factory=lambda: new_id("cmpl"))

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        choices = [choice(i, result, text=result.text) for i, result in enumerate(results)]
        return self._object("text_completion", self.number, choices, usage=usage(results))

    def start(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, index: int, text: str) -> dict[str, Any]:
        return self._chunk(index, text, None)

    def end(self, index: int, result: Result) -> dict[str, Any]:
        return self._chunk(index, "", finish_reason(result)) | {"seed": result.parameters.seed}

    def cost(self, results: Sequence[Result]) -> dict[str, Any]:
        return self._object("text_completion", self.number, [], usage=usage(results))

    def _chunk(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        part = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        return self._object("text_completion", self.number, [part])


def choice(index: int, result: Result, **content: Any) -> dict[str, Any]:
    """One of an answer."""
    return {
        "index": index,
        **content,
        "logprobs": None,
        "finish_reason": finish_reason(result),
        "seed": result.parameters.seed,
    }


def finish_reason(result: Result) -> str:
    """In the API's words."""
    return FINISH.get(result.finish_reason, result.finish_reason)


def usage(results: Sequence[Result]) -> dict[str, Any]:
    """Tokens of a request's prompt and of all its answers, and what speculation did for them."""
    prompt = sum(result.prompt_tokens for result in results)
    generated = sum(len(result.token_ids) for result in results)
    stats = [result.stats for result in results]
    rounds = sum(one.rounds for one in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(r.cached_tokens for r in results)},
        "speculation": {
            "rounds": rounds,
            "drafted": sum(one.drafted for one in stats),
            "accepted": sum(one.accepted for one in stats),
            "tau": sum(one.emitted for one in stats) / rounds if rounds else None,
        },
    }
