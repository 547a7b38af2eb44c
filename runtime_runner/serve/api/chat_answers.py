"""Answers in a chat: reasoning, content and tool calls in the forms of OpenAI's API."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import Message
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.serve.tool_calls.chat_format import CallPolicy, ChatFormat
from eagle_aot.runtime_runner.serve.tool_calls.parser import AnswerParser
from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    AnswerEvent,
    CallArguments,
    CallBegin,
    Content,
    Reasoning,
)
from eagle_aot.runtime_runner.serve.tool_calls.schemas import is_deep


class ChatTurn:
    """The next turn of a conversation: what the chat template gets, and how the answer is read."""

    def __init__(
        self,
        chat: ChatFormat,
        tools: Sequence[Mapping[str, Any]] = (),
        policy: CallPolicy | None = None,
        template_values: Mapping[str, Any] | None = None,
        reasoning_effort: str | None = None,
    ) -> None:
        """`tools` are those that the template declares, `policy` says which of them an answer may
        call. Raises SettingError for `template_values` that are nested too deeply."""
        if is_deep(template_values):
            raise SettingError("chat_template_kwargs: nested too deeply")
        self._chat, self._tools, self._policy = chat, tools, policy
        self.template_values = chat.values(tools, template_values or {}, reasoning_effort)

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return the conversation as the template takes it. Raises PromptError."""
        return self._chat.messages(messages, self._tools)

    def parameters(
        self, prompt: Sequence[int], answers: Sequence[GenerationParams]
    ) -> list[GenerationParams]:
        """Return the parameters of all answers to a prompt, which differ in their seeds and so have
        one grammar. Raises SettingError."""
        first = self._chat.parameters(answers[0], prompt, self._policy)
        return [msgspec.structs.replace(first, seed=each.seed) for each in answers]

    def answer(self, prompt: Sequence[int]) -> "ChatAnswer":
        """Return what reads an answer to a prompt."""
        return ChatAnswer(self._chat.parser(prompt, self._policy))


class ChatAnswer:
    """One answer, whole or in parts."""

    def __init__(self, parser: AnswerParser | None = None) -> None:
        """The `parser` is new; without one all text is content."""
        self._parser = parser or AnswerParser()
        self._suffix = secrets.token_hex(12)

    def read(self, text: str) -> list[AnswerEvent]:
        """Return what the next text completes."""
        return self._parser.feed(text)

    def finish(self) -> list[AnswerEvent]:
        """Return what is left at the end."""
        return self._parser.finish()

    def call_id(self, number: int) -> str:
        """Return the id of a call, which no other call of the response has."""
        return f"call_{self._suffix}_{number}"

    def deltas(self, text: str) -> list[dict[str, Any]]:
        """Return the deltas of a stream for the next text."""
        return [self._delta(event) for event in self.read(text)]

    def last_deltas(self) -> list[dict[str, Any]]:
        """Return the deltas for what is left at the end."""
        return [self._delta(event) for event in self.finish()]

    def message(self, text: str) -> dict[str, Any]:
        """Return the message for the whole text."""
        events = [*self.read(text), *self.finish()]
        content = "".join(event.text for event in events if isinstance(event, Content))
        reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
        calls = [self._call(event, events) for event in events if isinstance(event, CallBegin)]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message |= {"content": content or None, "tool_calls": calls}
        return message

    def finish_reason(self, reason: str) -> str:
        """Return why the answer ended: one that calls tools ended for that."""
        return "tool_calls" if self._parser.calls and reason == "stop" else reason

    def _call(self, begin: CallBegin, events: Sequence[AnswerEvent]) -> dict[str, Any]:
        parts = (
            e.text for e in events if isinstance(e, CallArguments) and e.number == begin.number
        )
        function = {"name": begin.name, "arguments": "".join(parts)}
        return {"id": self.call_id(begin.number), "type": "function", "function": function}

    def _delta(self, event: AnswerEvent) -> dict[str, Any]:
        if isinstance(event, Content):
            return {"content": event.text}
        if isinstance(event, Reasoning):
            return {"reasoning_content": event.text}
        if isinstance(event, CallArguments):
            return {"tool_calls": [{"index": event.number, "function": {"arguments": event.text}}]}
        function = {"name": event.name, "arguments": ""}
        call = {"id": self.call_id(event.number), "type": "function", "function": function}
        return {"tool_calls": [{"index": event.number, **call}]}
