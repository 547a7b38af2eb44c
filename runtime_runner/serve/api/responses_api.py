"""POST /v1/responses: OpenAI's newer API for texts, in the terms of its older one for chats."""

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.serve.answer_stream import AnswerPart, AnswerStream
from eagle_aot.runtime_runner.serve.api.errors import api_error
from eagle_aot.runtime_runner.serve.api.messages import (
    MAX_MESSAGES,
    Body,
    ChatMessage,
    RequestText,
)
from eagle_aot.runtime_runner.serve.api.requests import (
    ChatCompletionRequest,
    JsonFormat,
    NamedSchema,
    NoFormat,
    ReasoningEffort,
    SchemaFormat,
    SharedFields,
)
from eagle_aot.runtime_runner.serve.api.respond import event
from eagle_aot.runtime_runner.serve.api.responses import ChatResponseBuilder

log = logging.getLogger(__name__)
PARTS = {
    "content": ("message", "output_text"),
    "reasoning_content": ("reasoning", "reasoning_text"),
}
"""The fields of a chat's message, each with the types of its item and of that item's part here."""


class InputMessage(ChatMessage):
    """A message of the input; items of other types are not read."""

    type: Literal["message"] = "message"


class FlatSchemaFormat(NamedSchema, tag_field="type", tag="json_schema"):
    """JSON that matches a schema."""


class TextOptions(Body):
    """What the text must match."""

    format: NoFormat | JsonFormat | FlatSchemaFormat | None = None


class ReasoningOptions(Body):
    """How much is thought before the text."""

    effort: ReasoningEffort | None = None


class ResponsesRequest(SharedFields, kw_only=True):
    """The body of POST /v1/responses, without tools and without what servers store."""

    input: RequestText | Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: RequestText | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None

    def chat(self) -> ChatCompletionRequest:
        """Return the request as that of a chat. Raises SettingError for several answers."""
        shared = {name: getattr(self, name) for name in SharedFields.__struct_fields__}
        if shared.get("n") not in (None, 1):
            raise SettingError("n: a response has one answer")
        system = [] if self.instructions is None else [("system", self.instructions)]
        turns = [("user", self.input)] if isinstance(self.input, str) else []
        texts: Any = [*system, *turns]
        messages = [ChatMessage(role=role, content=content) for role, content in texts]
        return ChatCompletionRequest(
            **shared,
            messages=[*messages, *([] if isinstance(self.input, str) else self.input)],
            max_completion_tokens=self.max_output_tokens,
            stream=self.stream,
            response_format=self._format(),
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
        )

    def _format(self) -> NoFormat | JsonFormat | SchemaFormat | None:
        form = None if self.text is None else self.text.format
        return SchemaFormat(json_schema=form) if isinstance(form, FlatSchemaFormat) else form


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponsesBuilder(ChatResponseBuilder):
    """Builds the objects of one response."""

    request: ResponsesRequest

    def full(self, results: Any) -> dict[str, Any]:
        (result,) = results
        message = self.answers[0].message(result.text or "")
        items = [(field, message[field]) for field in reversed(PARTS) if message.get(field)]
        items = items or [("content", "")]
        output = [self.item(number, field, text) for number, (field, text) in enumerate(items)]
        return self.response(output, result)

    def item(self, number: int, field: str, text: str | None) -> dict[str, Any]:
        """Return the item with a field of a message, None for one that has begun."""
        kind, _ = PARTS[field]
        item = {"id": f"{kind}_{self.suffix}_{number}", "type": kind}
        item |= {"status": "in_progress" if text is None else "completed"}
        content = [] if text is None else [self.part(field, text)]
        role: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        return item | role | {"content": content}

    def part(self, field: str, text: str) -> dict[str, Any]:
        """Return the part of an item that has its text."""
        _, kind = PARTS[field]
        extras = ("annotations", "logprobs") if field == "content" else ()
        return {"type": kind, "text": text} | {name: [] for name in extras}

    def response(self, output: list[dict[str, Any]], result: Result | None) -> dict[str, Any]:
        """Return the response, without a result one that has begun."""
        request, status, details = self.request, "in_progress", None
        if result is not None:
            is_cut = self.finish_reason(0, result) == "length"
            status = "incomplete" if is_cut else "completed"
            details = {"reason": "max_output_tokens"} if is_cut else None
        params = None if result is None else result.parameters
        shape = request.text.format if request.text else None
        return {
            "id": f"resp_{self.suffix}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": details,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": params and params.temperature,
            "text": {"format": {"type": "text"} if shape is None else msgspec.to_builtins(shape)},
            "tool_choice": "auto",
            "tools": [],
            "top_p": params and params.top_p,
            "truncation": "disabled",
            "metadata": {},
            "usage": None if result is None else self._usage(result),
            "seed": params and params.seed,
            **self.warned,
        }

    def _usage(self, result: Result) -> dict[str, Any]:
        usage = self.usage([result])
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens(result.token_ids)},
            "total_tokens": usage["total_tokens"],
            "speculation": usage["speculation"],
        }


class ResponseEvents:
    """The events of one response's stream, numbered."""

    def __init__(self, builder: ResponsesBuilder) -> None:
        self._builder, self._number = builder, 0
        self._output: list[dict[str, Any]] = []
        self._field: str | None = None
        self._text = ""
        """The item that has begun: its field of a chat's message and its text."""

    def event(self, kind: str, **values: Any) -> bytes:
        """Return the next event."""
        content = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return f"event: {kind}\n".encode() + event(content)

    def begin(self) -> Iterator[bytes]:
        """Yield the events before the first text."""
        for kind in ("response.created", "response.in_progress"):
            yield self.event(kind, response=self._builder.response([], None))

    def add(self, deltas: list[dict[str, Any]]) -> Iterator[bytes]:
        """Yield the events of a chat's deltas."""
        for delta in deltas:
            for field, text in delta.items():
                if field != self._field:
                    yield from self._end_item()
                    yield from self._begin_item(field)
                self._text += text
                yield self._part_event("delta", delta=text)

    def end(self, result: Result) -> Iterator[bytes]:
        """Yield the events after the last text."""
        if self._field is None:
            yield from self._begin_item("content")
        yield from self._end_item()
        response = self._builder.response(self._output, result)
        yield self.event(f"response.{response['status']}", response=response)

    @property
    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self._output)}

    def _item(self, text: str | None) -> dict[str, Any]:
        assert self._field is not None
        return self._builder.item(len(self._output), self._field, text)

    def _part_event(self, name: str, **values: Any) -> bytes:
        assert self._field is not None
        place = self._place | {"item_id": self._item(None)["id"], "content_index": 0}
        if self._field == "content":
            place["logprobs"] = []
        return self.event(f"response.{PARTS[self._field][1]}.{name}", **place, **values)

    def _begin_item(self, field: str) -> Iterator[bytes]:
        self._field, self._text = field, ""
        item, part = self._item(None), self._builder.part(field, "")
        place = self._place | {"item_id": item["id"], "content_index": 0}
        yield self.event("response.output_item.added", **self._place, item=item)
        yield self.event("response.content_part.added", **place, part=part)

    def _end_item(self) -> Iterator[bytes]:
        if self._field is None:
            return
        item = self._item(self._text)
        yield self._part_event("done", text=self._text)
        place = self._place | {"item_id": item["id"], "content_index": 0}
        part = self._builder.part(self._field, self._text)
        yield self.event("response.content_part.done", **place, part=part)
        yield self.event("response.output_item.done", **self._place, item=item)
        self._output.append(item)
        self._field = None


async def response_events(
    builder: ResponsesBuilder,
    stream: AnswerStream,
    first: AnswerPart,
    others: AsyncIterator[AnswerPart],
) -> AsyncIterator[bytes]:
    """Yield the events of a stream. A failure is its last event."""
    events = ResponseEvents(builder)
    try:
        for line in events.begin():
            yield line
        part: AnswerPart | None = first
        while part is not None:
            index, item = part
            answer = builder.answers[index]
            if isinstance(item, Result):
                lines = [*events.add(answer.last_deltas()), *events.end(item)]
            else:
                lines = [*events.add(answer.deltas(item.text))]
            for line in lines:
                yield line
            part = await anext(others, None)
    except Exception as error:
        log.exception("a stream failed")
        refusal = api_error(error)
        yield events.event("error", code=refusal.code, message=str(refusal), param=refusal.param)
    finally:
        stream.close()
