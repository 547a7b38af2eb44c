"""Objects of the Responses API: a response, and the items of its output."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.serve.api.responses import ChatResponseBuilder
from eagle_aot.runtime_runner.serve.api.responses_api.requests import ResponsesRequest
from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    AnswerEvent,
    CallArguments,
    CallBegin,
    Content,
    Reasoning,
)

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"
Event = tuple[str, dict[str, Any]]
"""The type of an event of a stream, after `response.`, and what else it has."""


@dataclass(frozen=True, slots=True)
class ItemKind:
    """A kind of item: its type, the prefix of its ids, and what events call its text."""

    type: str
    prefix: str
    text: str


MESSAGE = ItemKind("message", "msg", "output_text")
REASONING = ItemKind("reasoning", "rs", "reasoning_text")
CALL = ItemKind("function_call", "fc", "function_call_arguments")
KINDS = {Content: MESSAGE, Reasoning: REASONING, CallArguments: CALL}


class OutputWriter:
    """Makes items of what an answer consists of, and the events of a stream that has them.

    `output` has the items that have ended.
    """

    def __init__(self, suffix: str, call_id: Callable[[int], str]) -> None:
        """Ids of items end with `suffix` and a number; `call_id` returns that of an answer's
        call."""
        self._suffix, self._call_id = suffix, call_id
        self._kind: ItemKind | None = None
        self._text = ""
        self._call: dict[str, str] = {}
        """What has begun: an item, its text so far, and the id and the name of a call."""
        self.output: list[dict[str, Any]] = []

    def add(self, parts: Iterable[AnswerEvent]) -> Iterator[Event]:
        """Yield the events of the next parts of an answer."""
        for part in parts:
            if isinstance(part, CallBegin):
                call = {"call_id": self._call_id(part.number), "name": part.name}
                yield from self._begin(CALL, call)
                continue
            kind = KINDS[type(part)]
            if kind is not self._kind:
                yield from self._begin(kind)
            self._text += part.text
            yield self._text_event("delta", delta=part.text)

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events that end an answer, whose last item has this status."""
        if self._kind is None:
            yield from self._begin(MESSAGE)
        yield from self._end(status)

    def _begin(self, kind: ItemKind, call: dict[str, str] | None = None) -> Iterator[Event]:
        yield from self._end(COMPLETED)
        self._kind, self._text, self._call = kind, "", call or {}
        place = {"output_index": len(self.output)}
        yield "output_item.added", {**place, "item": self._item(IN_PROGRESS)}
        if kind is not CALL:
            yield "content_part.added", {**self._place(), "part": self._part()}

    def _end(self, status: str) -> Iterator[Event]:
        """Yield the events that end an item, if one has begun."""
        if self._kind is None:
            return
        if self._kind is CALL:
            yield self._text_event("done", arguments=self._text, name=self._call["name"])
        else:
            yield self._text_event("done", text=self._text)
            yield "content_part.done", {**self._place(), "part": self._part()}
        item = self._item(status)
        yield "output_item.done", {"output_index": len(self.output), "item": item}
        self.output.append(item)
        self._kind = None

    def _text_event(self, change: str, **values: Any) -> Event:
        assert self._kind is not None
        extras: dict[str, Any] = {"logprobs": []} if self._kind is MESSAGE else {}
        return f"{self._kind.text}.{change}", {**self._place(), **extras, **values}

    def _place(self) -> dict[str, Any]:
        """Return where the text of an item that has begun is."""
        place = {"output_index": len(self.output), "item_id": self._id}
        return place if self._kind is CALL else {**place, "content_index": 0}

    @property
    def _id(self) -> str:
        assert self._kind is not None
        return f"{self._kind.prefix}_{self._suffix}_{len(self.output)}"

    def _item(self, status: str) -> dict[str, Any]:
        """Return the item that has begun."""
        assert self._kind is not None
        item = {"id": self._id, "type": self._kind.type, "status": status}
        if self._kind is CALL:
            return {**item, **self._call, "arguments": self._text}
        content = [] if status == IN_PROGRESS else [self._part()]
        extras: dict[str, Any] = {"summary": []}
        if self._kind is MESSAGE:
            extras = {"role": "assistant"}
        return {**item, **extras, "content": content}

    def _part(self) -> dict[str, Any]:
        assert self._kind is not None
        extras = ("annotations", "logprobs") if self._kind is MESSAGE else ()
        return {"type": self._kind.text, "text": self._text, **{name: [] for name in extras}}


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponsesBuilder(ChatResponseBuilder):
    """Builds the objects of one response."""

    request: ResponsesRequest

    def full(self, results: Any) -> dict[str, Any]:
        (result,) = results
        writer = self.writer()
        for _ in self.last_events(writer, result, result.text or ""):
            pass  # the response has what they tell of
        return self.response(writer.output, result)

    def writer(self) -> OutputWriter:
        """Return what makes the output's items."""
        return OutputWriter(self.suffix, self.answers[0].call_id)

    def last_events(self, writer: OutputWriter, result: Result, text: str = "") -> Iterator[Event]:
        """Yield the events of the last text, and those that end the output."""
        answer = self.answers[0]
        yield from writer.add([*answer.read(text), *answer.finish()])
        yield from writer.end(self._status(result))

    def response(self, output: list[dict[str, Any]], result: Result | None) -> dict[str, Any]:
        """Return the response, without a result one that has begun."""
        status = IN_PROGRESS if result is None else self._status(result)
        params = None if result is None else result.parameters
        return {
            "id": f"resp_{self.suffix}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
            "model": self.model,
            "output": output,
            "previous_response_id": None,
            "store": False,
            "temperature": params and params.temperature,
            "top_p": params and params.top_p,
            "truncation": "disabled",
            "metadata": {},
            "usage": None if result is None else self._usage(result),
            "seed": params and params.seed,
            **self.request.echo,
            **self.warned,
        }

    def _status(self, result: Result) -> str:
        return INCOMPLETE if self.finish_reason(0, result) == "length" else COMPLETED

    def _usage(self, result: Result) -> dict[str, Any]:
        usage = self.usage([result])
        cached, prompt = result.cached_tokens, usage["prompt_tokens"]
        return {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": prompt - cached,
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens(result.token_ids)},
            "total_tokens": usage["total_tokens"],
            "speculation": usage["speculation"],
        }
