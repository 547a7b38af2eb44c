"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder
and Qwen3.5.

A text stands as it is; other values are JSON. Which one a value is, the function's schema says.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_aot.runtime_runner.serve.tool_calls.grammar import (
    GrammarWriter,
    alternatives,
    quoted,
)
from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    CallReader,
    Function,
    ToolCallFormat,
    find_marker,
    read_json,
    to_json,
)
from eagle_aot.runtime_runner.serve.tool_calls.schemas import (
    properties_of,
    resolved,
    types_of,
)

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\s*")
PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
FUNCTION_END = re.compile(r"\s*</function>\s*")
VALUE_END = "\n</parameter>\n"
TEXT_END = "</parameter>"
"""The end of a text, whose line break before it is no part of it."""


class Qwen3XmlFormat(ToolCallFormat):
    """Calls are parameters between tags."""

    begin, markers = BEGIN, (BEGIN, END)
    separator = "\n"

    def writes(self, text: str) -> bool:
        return "<function=" in text and "<parameter=" in text

    def find(self, text: str, at_start: bool) -> tuple[int, int] | int:
        return find_marker(text, BEGIN)

    def reader(self, functions: Sequence[Function]) -> CallReader:
        return XmlCallReader({function.name: function for function in functions})

    def rule(self, writer: GrammarWriter, functions: Sequence[Function]) -> str:
        calls = [function_rule(writer, function) for function in functions]
        end = writer.literal("\n" + END)
        return writer.rule(f'"\\n<function=" {alternatives(calls)} {end}')


class XmlCallReader(CallReader):
    """Passes each parameter on when it is complete."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._schema: Mapping[str, Any] = {}
        self._keys: set[str] = set()
        self._tail = False

    def read(self, text: str) -> tuple[int, str]:
        position, parts = 0, list[str]()
        if self.name is None:
            head = FUNCTION.match(text)
            if head is None:
                self.failed = END in text or (bool(text.strip()) and not may_begin(text))
                return 0, ""
            self.name, position = head[1], head.end()
            if self.name in self._functions:
                self._schema = self._functions[self.name].schema
            parts.append("{")
        while not self._tail and (match := PARAMETER.match(text, position)):
            position = match.end()
            parts.append(self._parameter(match[1], match[2]))
        if not self._tail and (match := FUNCTION_END.match(text, position)):
            position, self._tail = match.end(), True
            parts.append("}")
        end = text.find(END, position) if self._tail else -1
        if end >= 0:
            position, self.done = end + len(END), True
        return position, "".join(parts)

    def _parameter(self, key: str, text: str) -> str:
        comma = ", " if self._keys else ""
        self._keys.add(key)
        schema = properties_of(self._schema).get(key, (True, False))[0]
        return f"{comma}{to_json(key)}: {to_json(value_of(text, schema, self._schema))}"


def may_begin(text: str) -> bool:
    """Return whether a text may become the begin of a function."""
    start, opening = text.lstrip(), "<function="
    return opening.startswith(start) or (start.startswith(opening) and "\n" not in start)


def value_of(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the value that a parameter's text is. What is not of the schema's type is a text."""
    kinds = types_of(schema, root)
    if kinds == {"string"}:
        return text
    if "string" in kinds:
        return None if "null" in kinds and text == "null" else text
    value, is_json = read_json(text)
    return value if is_json else text


def function_rule(writer: GrammarWriter, function: Function) -> str:
    """Add the rule of a function's name and parameters, in the schema's order. Returns its name."""
    schema = resolved(function.schema, function.schema)
    parts = [quoted(f"{function.name}>\n")]
    for name, (value, is_required) in properties_of(schema).items():
        rule = parameter_rule(writer, function, name, value)
        parts.append(rule if is_required else f"{rule}?")
    if not properties_of(schema) and schema.get("additionalProperties", True):
        value = writer.until(TEXT_END)
        name = writer.rule(f'"<parameter=" /[^<>\\n]+/ ">\\n" {value} "\\n"')
        parts.append(f"{name}*")
    parts.append('"</function>"')
    return writer.rule(" ".join(parts))


def parameter_rule(writer: GrammarWriter, function: Function, name: str, schema: Any) -> str:
    """Add the rule of a parameter. Returns its name."""
    head = quoted(f"<parameter={name}>\n")
    kinds = types_of(schema, function.schema)
    values = resolved(schema, function.schema).get("enum")
    if "string" not in kinds:
        value = writer.json(schema, function.schema, strict=function.strict)
        return writer.rule(f"{head} {value} {quoted(VALUE_END)}")
    if kinds == {"string"} and isinstance(values, Sequence) and values:
        texts = alternatives([quoted(str(value)) for value in values])
        return writer.rule(f"{head} {texts} {quoted(VALUE_END)}")
    return writer.rule(f'{head} {writer.until(TEXT_END)} "\\n"')
