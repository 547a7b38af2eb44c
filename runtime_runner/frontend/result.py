"""The result of a generation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.engine.request import RequestTimes
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One generation.

    `cached_tokens` of the prompt were in the cache already. `token_ids` includes the token that
    ended the generation. `logprobs` has an item for each of them, `prompt_logprobs` for each token
    of the prompt; they are None unless they were requested. `text` ends before a stop text and is
    None without a tokenizer. `finish_reason` is stop, length, context or cancelled. `drafter` is
    None where nothing was to be drafted. `parameters` include the seed: with them the same prompt
    gives the same tokens again. `times` is None for a request that never had a cache.
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
    times: RequestTimes | None

    @property
    def ids(self) -> str:
        """The token ids as text, printed where there is no tokenizer."""
        return " ".join(map(str, self.token_ids))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of `eagle-run --json`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "new_tokens": len(self.token_ids),
            "token_ids": self.token_ids,
            "logprobs": _to_json(self.logprobs),
            "prompt_logprobs": _to_json(self.prompt_logprobs),
            "text": self.text,
            "finish_reason": self.finish_reason,
            **self.stats.to_json(),
            "executor": self.executor,
            "drafter": self.drafter,
            "seed": self.parameters.seed,
            "parameters": self.parameters.to_json(),
        }


def _to_json(logprobs: Sequence[TokenLogprobs] | None) -> list[dict[str, Any]] | None:
    return None if logprobs is None else [token.to_json() for token in logprobs]


def finish_reason(
    new_tokens: int, stopped: bool, remaining_tokens: int, max_new_tokens: int
) -> str:
    """Return why a generation ended: at a stop token or text, at `max_new_tokens`, at the end of
    the context, which left `remaining_tokens`, or because it was cancelled."""
    if stopped:
        return "stop"
    if new_tokens == max_new_tokens:
        return "length"
    return "context" if new_tokens == remaining_tokens else "cancelled"
