"""Bodies of POST /v1/responses, and what they are as those of a chat."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from eagle_aot.common.errors import PromptError, SettingError
from eagle_aot.runtime_runner.serve.api.messages import (
    MAX_MESSAGES,
    Body,
    ChatMessage,
    MessageContent,
    RequestText,
    ShortText,
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
from eagle_aot.runtime_runner.serve.api.tools import (
    MAX_TOOLS,
    AllowedChoice,
    AllowedTools,
    CalledFunction,
    CalledTool,
    FunctionChoice,
    FunctionDefinition,
    FunctionName,
    FunctionTool,
    NamedTool,
    ToolChoice,
    ToolText,
)


class InputMessage(ChatMessage, tag_field="type", tag="message"):
    """A message of the input, which may have been an item of an output."""

    id: ShortText | None = None
    status: ShortText | None = None


class OtherItem(Body, tag_field="type"):
    """What all other items have; none of it is read."""

    id: ShortText | None = None
    status: ShortText | None = None


class FunctionCallItem(OtherItem, kw_only=True, tag="function_call"):
    """A call of an earlier response, with its arguments as JSON."""

    call_id: ToolText
    name: FunctionName
    arguments: ToolText


class FunctionOutputItem(OtherItem, kw_only=True, tag="function_call_output"):
    """The output of a function, for the call with the same `call_id`."""

    call_id: ToolText
    output: MessageContent


class ReasoningText(Body):
    """A part of a reasoning."""

    text: RequestText
    type: ShortText | None = None


class ReasoningItem(OtherItem, tag="reasoning"):
    """The reasoning of an earlier response. Its `summary` is not read."""

    content: Annotated[list[ReasoningText], Meta(max_length=MAX_MESSAGES)] | None = None
    summary: Annotated[list[ReasoningText], Meta(max_length=MAX_MESSAGES)] | None = None

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "".join(part.text for part in self.content or ())


InputItem = InputMessage | FunctionCallItem | FunctionOutputItem | ReasoningItem
InputItems = Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_MESSAGES)]


class FlatSchemaFormat(NamedSchema, tag_field="type", tag="json_schema"):
    """JSON that matches a schema."""


class FlatFunctionTool(FunctionDefinition, tag_field="type", tag="function"):
    """A tool, which is always a function."""


class FlatNamedTool(FunctionChoice, tag_field="type", tag="function"):
    """The one tool that a response calls."""


class FlatAllowedChoice(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """A choice among some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatNamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class TextOptions(Body):
    """What the text must match."""

    format: NoFormat | JsonFormat | FlatSchemaFormat | None = None


class ReasoningOptions(Body):
    """How much is thought before the text."""

    effort: ReasoningEffort | None = None


class ResponsesRequest(SharedFields, kw_only=True):
    """The body of POST /v1/responses, without what servers store."""

    input: RequestText | InputItems
    instructions: RequestText | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Annotated[list[FlatFunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatNamedTool | FlatAllowedChoice | None = (
        None
    )
    parallel_tool_calls: bool | None = None

    def chat(self) -> ChatCompletionRequest:
        """Return the request as that of a chat. Raises SettingError for several answers, and
        PromptError for an input without text."""
        shared = {name: getattr(self, name) for name in SharedFields.__struct_fields__}
        if shared.get("n") not in (None, 1):
            raise SettingError("n: a response has one answer")
        messages = self._messages()
        if not messages:
            raise PromptError("input: there is no text")
        return ChatCompletionRequest(
            **shared,
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            stream=self.stream,
            response_format=self._format(),
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
            tools=None if self.tools is None else [FunctionTool(function=t) for t in self.tools],
            tool_choice=self._tool_choice(),
            parallel_tool_calls=self.parallel_tool_calls,
        )

    @property
    def echo(self) -> dict[str, Any]:
        """What a response repeats of its request."""
        form = None if self.text is None else self.text.format
        choice = "auto" if self.tool_choice is None else self.tool_choice
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "text": {"format": {"type": "text"} if form is None else msgspec.to_builtins(form)},
            "tool_choice": msgspec.to_builtins(choice),
            "tools": msgspec.to_builtins(self.tools or []),
        }

    def _messages(self) -> list[ChatMessage]:
        turns = self.input
        if isinstance(turns, str):
            turns = [InputMessage(role="user", content=turns)]
        text = self.instructions
        system = [] if text is None else [ChatMessage(role="system", content=text)]
        return [*system, *messages_of(turns)]

    def _format(self) -> NoFormat | JsonFormat | SchemaFormat | None:
        form = None if self.text is None else self.text.format
        return SchemaFormat(json_schema=form) if isinstance(form, FlatSchemaFormat) else form

    def _tool_choice(self) -> ToolChoice | None:
        choice = self.tool_choice
        if isinstance(choice, FlatAllowedChoice):
            tools = [NamedTool(function=tool) for tool in choice.tools]
            return AllowedChoice(allowed_tools=AllowedTools(mode=choice.mode, tools=tools))
        return NamedTool(function=choice) if isinstance(choice, FlatNamedTool) else choice


def messages_of(items: Sequence[InputItem]) -> list[ChatMessage]:
    """Return items as the messages of a chat: a reasoning, a text and calls that follow each other
    are one turn of the assistant."""
    messages = list[ChatMessage]()
    for item in items:
        if isinstance(item, FunctionOutputItem):
            output = ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)
            messages.append(output)
        elif isinstance(item, InputMessage) and item.role != "assistant":
            messages.append(item)
        elif not isinstance(item, ReasoningItem) or item.text:
            add_to_turn(messages, item)
    return messages


def add_to_turn(
    messages: list[ChatMessage], item: InputMessage | FunctionCallItem | ReasoningItem
) -> None:
    """Add what the assistant wrote to its last turn, or begin one where that has it already."""
    turn = messages[-1] if messages else None
    has_text = turn is not None and turn.content is not None
    is_new = isinstance(item, ReasoningItem) or (isinstance(item, InputMessage) and has_text)
    if turn is None or turn.role != "assistant" or is_new:
        turn = ChatMessage(role="assistant")
        messages.append(turn)
    if isinstance(item, ReasoningItem):
        turn.reasoning_content = item.text
    elif isinstance(item, InputMessage):
        turn.content = item.content
    else:
        function = CalledFunction(name=item.name, arguments=item.arguments)
        turn.tool_calls = [*(turn.tool_calls or ()), CalledTool(function=function, id=item.call_id)]
