"""Bodies of responses: results and their parts as the objects of OpenAI's API."""

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from eagle_aot.common.token_bytes import TokenBytes
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.serve.answer_stream import AnswerDelta
from eagle_aot.runtime_runner.serve.api.chat_answers import ChatAnswer

FINISH_REASONS = {"context": "length"}
"""Finish reasons that the API has another word for."""


class VisibleLogprobs:
    """Selects the tokens of one answer whose text its reader has.

    Other tokens are not reported: they may begin a stop text. With `all_tokens` every token is
    reported in the end: readers of an echo count the tokens of the prompt from the first one on,
    and those of the answer from the last one back.
    """

    def __init__(self, *, all_tokens: bool = False) -> None:
        self._all_tokens = all_tokens
        self._pending: list[TokenLogprobs] = []
        self._characters = 0

    def add(self, logprobs: Sequence[TokenLogprobs], text: str) -> list[TokenLogprobs]:
        """Add the next tokens and the next text. Returns the tokens that begin before its end and
        were not returned yet."""
        self._pending += logprobs
        self._characters += len(text)
        visible = [token for token in self._pending if (token.offset or 0) < self._characters]
        self._pending = self._pending[len(visible) :]
        return visible

    def finish(self, result: Result) -> list[TokenLogprobs]:
        """Return the last tokens, which have no text, unless they ended the answer."""
        if result.finish_reason == "stop" and not self._all_tokens:
            return []
        return self._pending


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseBuilder:
    """Builds all objects of one response of /v1/completions, with `n` choices for each prompt.
    `visible_logprobs` has an item for each choice, or none where no log probabilities were
    requested. `prompts` has the token ids of each choice's prompt, which a response shows
    `with_ids`. `warnings` are lines about the request."""

    model: str
    fingerprint: str
    bytes_of: TokenBytes
    prompts: Sequence[Sequence[int]]
    n: int = 1
    warnings: Sequence[str] = ()
    with_ids: bool = False
    visible_logprobs: Sequence[VisibleLogprobs] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    suffix: str = field(default_factory=lambda: secrets.token_hex(12))

    ID_PREFIX: ClassVar[str] = "cmpl"
    OBJECT: ClassVar[str] = "text_completion"
    CHUNK_OBJECT: ClassVar[str] = "text_completion"

    def content(self, index: int, result: Result) -> dict[str, Any]:
        """Return the field of a choice that has its text."""
        return {"text": result.text}

    def deltas(self, index: int, text: str) -> list[dict[str, Any]]:
        """Return the fields of chunks that have the next text of a choice."""
        return [{"text": text}] if text else []

    def last_deltas(self, index: int) -> list[dict[str, Any]]:
        """Return the fields of chunks with what is left of a choice at its end."""
        return []

    def no_delta(self) -> dict[str, Any]:
        """Return the field of a chunk without text."""
        return {"text": ""}

    def usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return what a request has used."""
        return usage(results, self.n)

    def finish_reason(self, index: int, result: Result) -> str:
        """Return why a choice ended, which its text determines as well."""
        return FINISH_REASONS.get(result.finish_reason, result.finish_reason)

    def logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the log probabilities of tokens in the endpoint's form."""
        return completion_logprobs(tokens, self.bytes_of)

    def first_chunk(self, index: int) -> dict[str, Any] | None:
        """Return what a stream has before a choice's first text, None for nothing."""
        if not self.with_ids:
            return None
        prompt = {"prompt_token_ids": [*self.prompts[index]]}
        return self._chunk(index, self.no_delta(), logprobs=None, finish_reason=None, **prompt)

    @property
    def warned(self) -> dict[str, Any]:
        """The field with the warnings, if there are any."""
        return {"warnings": [*self.warnings]} if self.warnings else {}

    def ids(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Return the field of a choice that has its tokens, if they were requested."""
        return {"token_ids": [*tokens]} if self.with_ids else {}

    def all_ids(self, index: int, result: Result) -> dict[str, Any]:
        """Return the fields of a whole choice that have token ids, if they were requested."""
        prompt = {"prompt_token_ids": [*self.prompts[index]]} if self.with_ids else {}
        return prompt | self.ids(result.token_ids)

    def prompt_ids(self) -> dict[str, Any]:
        """Return the field of a response that has the ids of all choices' prompt, if any."""
        return {}

    def usage_so_far(self, index: int, tokens: int) -> dict[str, int]:
        """Return the usage of a choice that has `tokens` tokens."""
        prompt = len(self.prompts[index])
        counts = {"prompt_tokens": prompt, "completion_tokens": tokens}
        return counts | {"total_tokens": prompt + tokens}

    def full(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return a response that is no stream."""
        choices = [
            {
                "index": index,
                **self.content(index, result),
                **self._ending(index, result, self._all_logprobs(index, result)),
                **self.all_ids(index, result),
            }
            for index, result in enumerate(results)
        ]
        return self._object(
            self.OBJECT, choices, usage=self.usage(results), **self.warned, **self.prompt_ids()
        )

    def chunks(self, index: int, piece: AnswerDelta) -> list[dict[str, Any]]:
        """Return the chunks of a stream with more of a choice. The first one has the trace, the log
        probabilities and the token ids."""
        tokens: list[TokenLogprobs] = []
        if self.visible_logprobs:
            tokens = self.visible_logprobs[index].add(piece.logprobs, piece.text)
        deltas = self.deltas(index, piece.text)
        if not (deltas or tokens or piece.trace or (self.with_ids and piece.tokens)):
            return []
        first, *others = deltas or [self.no_delta()]
        first = first | self.ids(piece.tokens)
        logprobs = self.logprobs(tokens) if tokens else None
        return [
            self._chunk(index, first, logprobs=logprobs, finish_reason=None) | piece.trace,
            *(self._chunk(index, each, logprobs=None, finish_reason=None) for each in others),
        ]

    def last_chunks(self, index: int, result: Result) -> list[dict[str, Any]]:
        """Return the chunks of a stream that end a choice."""
        tokens = self.visible_logprobs[index].finish(result) if self.visible_logprobs else []
        logprobs = self.logprobs(tokens) if tokens else None
        rest = [
            self._chunk(index, delta, logprobs=None, finish_reason=None)
            for delta in self.last_deltas(index)
        ]
        ending = self._ending(index, result, logprobs)
        return [*rest, self._chunk(index, self.no_delta(), **ending)]

    def usage_chunk(self, results: Sequence[Result]) -> dict[str, Any]:
        """Return the chunk of a stream that has its usage."""
        return self._object(self.CHUNK_OBJECT, [], usage=self.usage(results))

    def _all_logprobs(self, index: int, result: Result) -> dict[str, Any] | None:
        if not self.visible_logprobs:
            return None
        visible = self.visible_logprobs[index]
        tokens = [*(result.prompt_logprobs or ()), *(result.logprobs or ())]
        return self.logprobs([*visible.add(tokens, result.text or ""), *visible.finish(result)])

    def _ending(
        self, index: int, result: Result, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Return the fields of a choice that are known at its end."""
        return {
            "logprobs": logprobs,
            "finish_reason": self.finish_reason(index, result),
            "seed": result.parameters.seed,
        }

    def _chunk(self, index: int, delta: dict[str, Any], **values: Any) -> dict[str, Any]:
        return self._object(self.CHUNK_OBJECT, [{"index": index, **delta, **values}])

    def _object(self, name: str, choices: list[Any], **values: Any) -> dict[str, Any]:
        return {
            "id": f"{self.ID_PREFIX}-{self.suffix}",
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **values,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatResponseBuilder(ResponseBuilder):
    """Builds responses of /v1/chat/completions. `answers` has what reads each choice, which may
    begin with some `reasoning_tokens`."""

    answers: Mapping[int, ChatAnswer] = field(default_factory=lambda: defaultdict(ChatAnswer))
    reasoning_tokens: Callable[[Sequence[int]], int] = lambda ids: 0

    ID_PREFIX, OBJECT, CHUNK_OBJECT = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def content(self, index: int, result: Result) -> dict[str, Any]:
        return {"message": self.answers[index].message(result.text or "")}

    def deltas(self, index: int, text: str) -> list[dict[str, Any]]:
        return [{"delta": delta} for delta in self.answers[index].deltas(text)]

    def last_deltas(self, index: int) -> list[dict[str, Any]]:
        return [{"delta": delta} for delta in self.answers[index].last_deltas()]

    def no_delta(self) -> dict[str, Any]:
        return {"delta": {}}

    def usage(self, results: Sequence[Result]) -> dict[str, Any]:
        reasoning = sum(self.reasoning_tokens(result.token_ids) for result in results)
        details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
        return usage(results, self.n) | (details if reasoning else {})

    def finish_reason(self, index: int, result: Result) -> str:
        reason = ResponseBuilder.finish_reason(self, index, result)
        return self.answers[index].finish_reason(reason)

    def logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return chat_logprobs(tokens, self.bytes_of)

    def first_chunk(self, index: int) -> dict[str, Any] | None:
        delta = {"delta": {"role": "assistant", "content": ""}}
        return self._chunk(index, delta, logprobs=None, finish_reason=None) | self.prompt_ids()

    def all_ids(self, index: int, result: Result) -> dict[str, Any]:
        return self.ids(result.token_ids)

    def prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": [*self.prompts[0]]} if self.with_ids else {}


def usage(results: Sequence[Result], n: int) -> dict[str, Any]:
    """Return the tokens of a request's prompts, each counted once, and of all its answers, `n` for
    each prompt, and what speculation did for them."""
    firsts = results[::n]
    prompt = sum(result.prompt_tokens for result in firsts)
    generated = sum(len(result.token_ids) for result in results)
    stats = [result.stats for result in results]
    rounds = sum(part.rounds for part in stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(r.cached_tokens for r in firsts)},
        "speculation": {
            "rounds": rounds,
            "drafted": sum(part.drafted for part in stats),
            "accepted": sum(part.accepted for part in stats),
            "tau": sum(part.emitted for part in stats) / rounds if rounds else None,
        },
    }


def chat_logprobs(tokens: Sequence[TokenLogprobs], bytes_of: TokenBytes) -> dict[str, Any]:
    """Return log probabilities as /v1/chat/completions has them. Special tokens have a name and no
    bytes."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        content = bytes_of(token)
        values = None if bytes_of.is_special(token) else list(content)
        return {"token": printed(content), "logprob": logprob, "bytes": values}

    content = [
        entry(token.id, token.logprob) | {"top_logprobs": [entry(*pair) for pair in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprobs], bytes_of: TokenBytes) -> dict[str, Any]:
    """Return log probabilities as /v1/completions has them: the likeliest tokens by their texts,
    the token itself among them, and null for a prompt's first token."""

    def top(token: TokenLogprobs) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        by_text: dict[str, float] = {}
        for token_id, logprob in (*token.top, (token.id, token.logprob)):
            by_text.setdefault(printed(bytes_of(token_id)), logprob)
        return by_text

    return {
        "tokens": [printed(bytes_of(token.id)) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [top(token) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def printed(content: bytes) -> str:
    """Return bytes as text, or as escapes where they are no whole characters."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
