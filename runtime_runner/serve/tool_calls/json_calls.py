"""Calls that are JSON objects with a name and arguments."""

import json
import re
from typing import Any

from eagle_aot.runtime_runner.serve.tool_calls.grammar import GrammarWriter, quoted
from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    CallReader,
    Function,
    JsonScanner,
    read_object,
    to_json,
)

HEAD = '{"name": "'
"""What a call begins with where a grammar holds it."""
ANY_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)',
    re.DOTALL,
)
FIRST_KEY = re.compile(r'\s*\{\s*(?:"([^"\\]*)"|[^"\s])')
KEYS = {"name", "arguments", "parameters", "type", "id"}
"""Keys that a call may begin with."""
TAIL = re.compile(r"\s*\}")


class JsonCallReader(CallReader):
    """Reads an object with `name`, and `arguments` or `parameters`, up to an end marker, if there
    is one.

    Arguments that follow the name are passed on as they arrive. An object with other keys or
    another order is read whole.
    """

    def __init__(self, end: str = "") -> None:
        self._end = end
        self._scanner: JsonScanner | None = None  # of the arguments
        self._tail = False

    def read(self, text: str) -> tuple[int, str]:
        if self._tail:
            return self._read_tail(text), ""
        if self._scanner is not None:
            return self._read_arguments(text, 0)
        if head := ANY_HEAD.match(text):
            self.name = json.loads(head[1], strict=False)
            self._scanner = JsonScanner()
            return self._read_arguments(text, head.end())
        return self._read_whole(text)

    def finish(self, text: str) -> str:
        call = None if self._scanner is not None or self._tail else call_of(text)
        if call is None:
            return ""
        self.name, self.done = call[0], True
        return call[1]

    def _read_arguments(self, text: str, start: int) -> tuple[int, str]:
        assert self._scanner is not None
        end = self._scanner.end(text[start:])
        if end is None:
            return len(text), text[start:]
        self._tail = True
        arguments = text[start : start + end]
        return start + end + self._read_tail(text[start + end :]), arguments

    def _read_tail(self, text: str) -> int:
        """Return how many characters end the call: all up to the end marker, or the brace."""
        if self._end:
            end = text.find(self._end)
            self.done = end >= 0
            return end + len(self._end) if self.done else 0
        tail = TAIL.match(text)
        self.done = tail is not None or bool(text.strip())
        return tail.end() if tail else 0

    def _read_whole(self, text: str) -> tuple[int, str]:
        first = FIRST_KEY.match(text)
        if first and first[1] not in KEYS:
            self.failed = True
            return 0, ""
        if self._end:
            end = text.find(self._end)
            length = end + len(self._end)
        else:
            end = length = JsonScanner().end(text) or -1
        if end < 0:
            return 0, ""
        call = call_of(text[:end])
        if call is None:
            self.failed = True
            return 0, ""
        self.name, self.done = call[0], True
        return length, call[1]


def call_of(text: str) -> tuple[str, str] | None:
    """Return the name and the arguments in an object, None where it is no call."""
    call = read_object(text) or {}
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):  # JSON within JSON
        arguments = read_object(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, to_json(arguments)


def json_rule(writer: GrammarWriter, function: Function, key: str) -> str:
    """Add the rule of an object with a call to a function, without its `HEAD`. Returns its name."""
    name = quoted(f'{to_json(function.name)[1:]}, "{key}": ')
    arguments = writer.json(function.schema, strict=function.strict)
    return writer.rule(f'{name} {arguments} "}}"')


def call_text(name: str, arguments: dict[str, Any] | str) -> str:
    """Return a call as an object."""
    text = arguments if isinstance(arguments, str) else to_json(arguments)
    return f'{{"name": {to_json(name)}, "arguments": {text}}}'
