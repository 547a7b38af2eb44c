"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3.

Hermes's own prompt, https://github.com/NousResearch/Hermes-Function-Calling, also serves models
whose chat templates know no tools.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle_aot.common.prompts import Message, text_of
from eagle_aot.runtime_runner.serve.tool_calls.grammar import (
    GrammarWriter,
    alternatives,
    quoted,
)
from eagle_aot.runtime_runner.serve.tool_calls.json_calls import (
    HEAD,
    JsonCallReader,
    call_text,
    json_rule,
)
from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    CallReader,
    Function,
    ToolCallFormat,
    find_marker,
    to_json,
)

BEGIN, END = "<tool_call>", "</tool_call>"
LINE = "\n"
PROMPT = (
    "You can call functions. Their signatures are within <tools></tools>:\n<tools>\n{tools}\n"
    "</tools>\nFor each call, write a JSON object with the function's name and arguments within "
    '<tool_call></tool_call>:\n<tool_call>\n{{"name": <name>, "arguments": <arguments>}}\n'
    "</tool_call>"
)


class HermesFormat(ToolCallFormat):
    """Calls are JSON between markers."""

    begin, markers = BEGIN, (BEGIN, END)
    separator = "\n"

    def writes(self, text: str) -> bool:
        return BEGIN in text and '"arguments"' in text

    def find(self, text: str, at_start: bool) -> tuple[int, int] | int:
        return find_marker(text, BEGIN)

    def reader(self, functions: Sequence[Function]) -> CallReader:
        return JsonCallReader(END)

    def rule(self, writer: GrammarWriter, functions: Sequence[Function]) -> str:
        calls = [json_rule(writer, function, "arguments") for function in functions]
        end = writer.literal(LINE + END)
        return writer.rule(f"{quoted(LINE + HEAD)} {alternatives(calls)} {end}")


def hermes_messages(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """Return a conversation for a template that knows no tools: they are in the system's text,
    calls in the assistant's turns, and their outputs in turns of the user."""
    turns = [hermes_message(message) for message in messages]
    if not tools:
        return turns
    prompt = PROMPT.format(tools="\n".join(map(to_json, tools)))
    if turns[0]["role"] != "system":
        return [{"role": "system", "content": prompt}, *turns]
    return [{"role": "system", "content": f"{text_of(turns[0])}\n\n{prompt}"}, *turns[1:]]


def hermes_message(message: Message) -> Message:
    """Return a turn without calls and without a tool's role."""
    if message["role"] == "tool":
        content = f"<tool_response>\n{text_of(message)}\n</tool_response>"
        return {"role": "user", "content": content}
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [f"{BEGIN}\n{call_text(f['name'], f['arguments'])}\n{END}" for f in functions]
    return {"role": "assistant", "content": "\n".join(filter(None, (text_of(message), *calls)))}
