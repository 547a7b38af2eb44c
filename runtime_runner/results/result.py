"""What came of a generation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle_aot.runtime_runner.parameters import GenerationParams
from eagle_aot.runtime_runner.results.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.results.stats import Stats


@dataclass(frozen=True, slots=True)
class Span:
    """When and where a text was served: seconds of one clock, and which of the caches it had."""

    sequence: int
    started: float
    first_token: float
    ended: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One generation.

    `cached_tokens` of the prompt were in the cache already. `token_ids` end with the one that
    ended the generation, and `logprobs`, None unless they were asked for, are those of each of
    them; `prompt_logprobs` are those of the prompt's. `text` ends before a stop text, and is None
    without a tokenizer. `finish_reason` is stop, length, context or cancelled. `drafter` is None
    where nothing was to be drafted. With `parameters`, seed included, the same prompt is answered
    alike again.
    """

    prompt_tokens: int
    cached_tokens: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs] | None
    text: str | None
    finish_reason: str
    executor: str
    drafter: str | None
    parameters: GenerationParams
    stats: Stats
    span: Span | None

    @property
    def ids(self) -> str:
        """What is printed without a tokenizer."""
        return " ".join(map(str, self.token_ids))

    def to_json(self) -> dict[str, Any]:
        """The fields of `eagle-run --json`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "new_tokens": len(self.token_ids),
            "token_ids": self.token_ids,
            "logprobs": listed(self.logprobs),
            "prompt_logprobs": listed(self.prompt_logprobs),
            "text": self.text,
            "finish_reason": self.finish_reason,
            **self.stats.to_json(),
            "executor": self.executor,
            "drafter": self.drafter,
            "seed": self.parameters.seed,
            "parameters": self.parameters.to_json(),
        }


def listed(logprobs: Sequence[TokenLogprobs] | None) -> list[dict[str, Any]] | None:
    """As a line of `eagle-run --json` has them."""
    return None if logprobs is None else [one.to_json() for one in logprobs]


def finish_reason(new_tokens: int, stopped: bool, room: int, max_new_tokens: int) -> str:
    """Why a generation ended: at a stop token or text, at its budget, at the end of the context,
    which left `room`, or because nobody wanted more."""
    if stopped:
        return "stop"
    if new_tokens == max_new_tokens:
        return "length"
    return "context" if new_tokens == room else "cancelled"
