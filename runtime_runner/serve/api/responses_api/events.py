"""The events of a response's stream."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from eagle_aot.runtime_runner.frontend.generation import Result
from eagle_aot.runtime_runner.serve.answer_stream import AnswerPart, AnswerStream
from eagle_aot.runtime_runner.serve.api.errors import stream_error
from eagle_aot.runtime_runner.serve.api.respond import event
from eagle_aot.runtime_runner.serve.api.responses_api.output import Event, ResponsesBuilder


class ResponseEvents:
    """The numbered events of one response's stream."""

    def __init__(self, builder: ResponsesBuilder) -> None:
        self._builder, self._writer, self._number = builder, builder.writer(), 0

    def begin(self) -> Iterator[bytes]:
        """Yield the events before the first text."""
        response = self._builder.response([], None)
        for kind in ("created", "in_progress"):
            yield self.event(f"response.{kind}", response=response)

    def add(self, part: AnswerPart) -> Iterator[bytes]:
        """Yield the events of the next part of the answer."""
        index, item = part
        builder = self._builder
        if not isinstance(item, Result):
            yield from self._events(self._writer.add(builder.answers[index].read(item.text)))
            return
        yield from self._events(builder.last_events(self._writer, item))
        response = builder.response(self._writer.output, item)
        yield self.event(f"response.{response['status']}", response=response)

    def event(self, kind: str, **values: Any) -> bytes:
        """Return the next event."""
        content = {"type": kind, "sequence_number": self._number, **values}
        self._number += 1
        return f"event: {kind}\n".encode() + event(content)

    def _events(self, events: Iterable[Event]) -> Iterator[bytes]:
        for kind, values in events:
            yield self.event(f"response.{kind}", **values)


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
            for line in events.add(part):
                yield line
            part = await anext(others, None)
    except Exception as error:
        refusal = stream_error(error)
        yield events.event("error", code=refusal.code, message=str(refusal), param=refusal.param)
    finally:
        stream.close()
