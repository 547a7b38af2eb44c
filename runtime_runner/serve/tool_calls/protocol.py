"""What a format of tool calls does, and what an answer consists of."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

from eagle_aot.runtime_runner.serve.tool_calls.grammar import GrammarWriter

STRUCTURAL = re.compile(r'["\\{}\[\]]')


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a model may call, whose arguments match a JSON schema. Unless it is `strict`,
    keywords of the schema that the grammar cannot express are ignored."""

    name: str
    schema: Mapping[str, Any]
    strict: bool = False


class Content(NamedTuple):
    """The next text of an answer."""

    text: str


class Reasoning(NamedTuple):
    """The next text of the reasoning before an answer."""

    text: str


class CallBegin(NamedTuple):
    """A call begins; calls of an answer are counted from 0."""

    number: int
    name: str


class CallArguments(NamedTuple):
    """The next part of the JSON text of a call's arguments."""

    number: int
    text: str


AnswerEvent = Content | Reasoning | CallBegin | CallArguments


class CallReader(ABC):
    """Reads one call from text that arrives in parts.

    `name` is None until it is known. `done` is set after the end of the call, `failed` where the
    text is no call; then none of it was read.
    """

    name: str | None = None
    done = failed = False

    @abstractmethod
    def read(self, text: str) -> tuple[int, str]:
        """Return how many characters of a text are read, and the next part of the arguments. The
        same text, longer, comes again without those characters."""

    def finish(self, text: str) -> str:
        """Return the last part of the arguments, where an answer ends with `text`."""
        return ""


class ToolCallFormat(ABC):
    """How a model writes tool calls."""

    begin: ClassVar[str]
    """The text that a call begins with."""
    follows_text: ClassVar[bool] = True
    """Whether a call may follow other text."""
    markers: ClassVar[Sequence[str]]
    """Texts that may be single tokens of a tokenizer."""
    several: ClassVar[bool] = True
    """Whether one answer may have several calls."""

    @abstractmethod
    def writes(self, text: str) -> bool:
        """Return whether a text has a call in this format."""

    @abstractmethod
    def find(self, text: str, at_start: bool) -> tuple[int, int] | int:
        """Return where the first call of a text begins, and where its reader begins to read; or
        how many characters certainly precede the first call, which may be still to come.
        `at_start`: nothing precedes the text but reasoning and calls."""

    @abstractmethod
    def reader(self, functions: Sequence[Function]) -> CallReader:
        """Return a reader of a call to one of the functions."""

    @abstractmethod
    def rule(self, writer: GrammarWriter, functions: Sequence[Function]) -> str:
        """Add the rule of a call to one of the functions, after its `begin`. Returns its name."""

    separator: ClassVar[str] = ""
    """The text between two calls."""


class JsonScanner:
    """Finds the end of a JSON object or list in text that arrives in parts."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._skip = -1  # of an escaped character
        self._length = 0

    def end(self, text: str) -> int | None:
        """Return where the value ends in the next part of the text, None where it does not."""
        start = self._length
        self._length += len(text)
        for match in STRUCTURAL.finditer(text):
            position, character = start + match.start(), match[0]
            if position == self._skip:
                continue
            if self._in_string:
                if character == "\\":
                    self._skip = position + 1
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return match.end()
        return None


def find_marker(text: str, marker: str) -> tuple[int, int] | int:
    """Return where a marker begins and ends in a text, or how many characters precede it, if it is
    still to come."""
    start = text.find(marker)
    return (start, start + len(marker)) if start >= 0 else len(text) - begun(text, marker)


def begun(text: str, marker: str) -> int:
    """Return the length of the longest end of a text that begins a marker."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


def read_json(text: str) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether it is one."""
    try:
        return json.loads(text, parse_constant=refuse), True
    except (ValueError, RecursionError):
        return None, False


def refuse(name: str) -> NoReturn:
    """Raise ValueError for a number such as NaN, which JSON does not have."""
    raise ValueError(name)


def read_object(text: str) -> dict[str, Any] | None:
    """Return a JSON object, None for any other text."""
    value, _ = read_json(text)
    return value if isinstance(value, dict) else None


def to_json(value: object) -> str:
    """Return JSON without escapes of characters beyond ASCII."""
    return json.dumps(value, ensure_ascii=False)
