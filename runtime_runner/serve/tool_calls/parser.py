"""Splits the text of an answer into reasoning, content and tool calls as it arrives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    AnswerEvent,
    CallArguments,
    CallBegin,
    CallReader,
    Content,
    Function,
    Reasoning,
    ToolCallFormat,
    find_marker,
)


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts that begin and end a model's reasoning."""

    begin: str
    end: str

    def is_in(self, template: str) -> bool:
        """Return whether a chat template has one of them."""
        return self.begin.rstrip() in template or self.end in template


class AnswerParser:
    """Reads one answer. However its text is split into parts, it has the same events, but for how
    texts are split among them.

    Blanks around reasoning and between calls are no part of the content.
    """

    def __init__(
        self,
        calls: ToolCallFormat | None = None,
        functions: Sequence[Function] = (),
        reasoning: ReasoningMarkers | None = None,
        *,
        in_reasoning: bool = False,
    ) -> None:
        """Without a format of `calls`, or without `reasoning` markers, there are none in the text.
        `in_reasoning`: the prompt ends after the beginning of the reasoning."""
        self._calls, self._functions, self._reasoning = calls, functions, reasoning
        self._text = ""  # that is not read yet
        self._begin = ""  # the begin marker of the call that is being read
        self._reader: CallReader | None = None
        self._at_start = True  # of the content
        self._is_blank = in_reasoning  # blanks that come next are dropped
        self._read: Callable[[list[AnswerEvent]], bool] = self._read_content
        if reasoning is not None:
            self._read = self._read_reasoning if in_reasoning else self._read_start
        self.calls = 0
        """The number of calls that have begun."""

    def feed(self, text: str) -> list[AnswerEvent]:
        """Add the next part of the text. Returns what it completes."""
        self._text += text
        events: list[AnswerEvent] = []
        while self._read(events):
            pass
        return events

    def finish(self) -> list[AnswerEvent]:
        """Return what is left at the end of the text: half the begin of a call is content, unless
        it follows another call."""
        events = self.feed("")
        reader = self._reader
        if reader is not None and reader.name is None:
            arguments = reader.finish(self._text)
            if reader.name is not None:
                self._begin_call(reader.name, events)
                events.append(CallArguments(self.calls - 1, arguments))
                self._text = ""
            else:
                self._text = "" if self.calls else self._begin + self._text
        elif reader is not None or (self.calls and self._is_half_begin()):
            self._text = ""
        if self._text and self._read == self._read_reasoning:
            self._text = self._text.rstrip()
            self._emit(Reasoning, len(self._text), events)
        self._emit(Content, len(self._text), events)
        return events

    def _is_half_begin(self) -> bool:
        """Return whether the text that is left begins a call."""
        return self._calls is not None and self._calls.begin.startswith(self._text.strip())

    def _read_start(self, events: list[AnswerEvent]) -> bool:
        """Find out whether the answer begins with reasoning."""
        assert self._reasoning is not None
        text, begin = self._text.lstrip(), self._reasoning.begin
        if text.startswith(begin):
            self._text, self._is_blank = text[len(begin) :], True
            self._read = self._read_reasoning
            return True
        if begin.startswith(text):
            return False
        self._read = self._read_content
        return True

    def _read_reasoning(self, events: list[AnswerEvent]) -> bool:
        assert self._reasoning is not None
        found = find_marker(self._text, self._reasoning.end)
        start = found if isinstance(found, int) else found[0]
        self._emit(Reasoning, len(self._text[:start].rstrip()), events)
        if isinstance(found, int):
            return False
        self._text = self._text[self._text.find(self._reasoning.end) + len(self._reasoning.end) :]
        self._read, self._is_blank = self._read_content, True
        return True

    def _read_content(self, events: list[AnswerEvent]) -> bool:
        if self._calls is None:
            self._emit(Content, len(self._text), events)
            return False
        found = self._calls.find(self._text, self._at_start)
        start = found if isinstance(found, int) else found[0]
        length = len(self._text)
        self._emit(Content, len(self._text[:start].rstrip()), events)
        if isinstance(found, int):
            return False
        begin = found[1] - (length - len(self._text))
        self._begin, self._text = self._text[:begin], self._text[begin:]
        self._reader = self._calls.reader(self._functions)
        self._read = self._read_call
        return True

    def _read_call(self, events: list[AnswerEvent]) -> bool:
        reader = self._reader
        assert reader is not None
        had_name = reader.name is not None
        count, arguments = reader.read(self._text)
        if reader.failed:
            self._text, self._reader = self._begin + self._text, None
            self._emit(Content, len(self._begin), events)
            self._read, self._at_start = self._read_content, False
            return True
        self._text = self._text[count:]
        if reader.name is not None and not had_name:
            self._begin_call(reader.name, events)
        if arguments:
            events.append(CallArguments(self.calls - 1, arguments))
        if reader.done:
            self._reader, self._read, self._is_blank = None, self._read_content, True
        return reader.done

    def _begin_call(self, name: str, events: list[AnswerEvent]) -> None:
        events.append(CallBegin(self.calls, name))
        self.calls += 1

    def _emit(
        self, kind: type[Content] | type[Reasoning], count: int, events: list[AnswerEvent]
    ) -> None:
        """Move the first characters from the text to the events."""
        part, self._text = self._text[:count], self._text[count:]
        if self._is_blank:
            part = part.lstrip()
        if part:
            events.append(kind(part))
            self._is_blank = False
            self._at_start = self._at_start and kind is Reasoning
