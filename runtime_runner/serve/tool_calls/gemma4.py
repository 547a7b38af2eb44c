"""`<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`: Gemma 4.

Keys have no quotation marks, a text stands between two `<|"|>` as it is, and the keys of an object
are in alphabetical order, as Gemma 4's own chat template writes calls.
"""

import re
from collections.abc import Sequence

from eagle_aot.runtime_runner.serve.tool_calls.gemma4_grammar import arguments_rule
from eagle_aot.runtime_runner.serve.tool_calls.grammar import (
    GrammarWriter,
    alternatives,
    quoted,
)
from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    CallReader,
    Function,
    ToolCallFormat,
    begun,
    find_marker,
    read_json,
    to_json,
)

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
HEAD = re.compile(r"\s*call:\s*([^\s{}]+)\s*(?=\{)")
KEY = re.compile(r"([^:,{}\[\]]+)\s*:")
WORD = re.compile(r"([^,{}\[\]]+)(?=[,}\]])")
JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
BLANKS = re.compile(r"\s*")


class Gemma4Format(ToolCallFormat):
    """Calls are names and arguments between tokens of their own."""

    begin, markers = BEGIN, (BEGIN, END, QUOTE)

    def writes(self, text: str) -> bool:
        return f"{BEGIN}call:" in text

    def find(self, text: str, at_start: bool) -> tuple[int, int] | int:
        return find_marker(text, BEGIN)

    def reader(self, functions: Sequence[Function]) -> CallReader:
        return Gemma4CallReader()

    def rule(self, writer: GrammarWriter, functions: Sequence[Function]) -> str:
        calls = [
            writer.rule(f"{quoted(function.name)} {arguments_rule(writer, function, QUOTE)}")
            for function in functions
        ]
        return writer.rule(f'"call:" {alternatives(calls)} {writer.literal(END)}')


class Gemma4CallReader(CallReader):
    """Turns arguments into JSON as they arrive."""

    def __init__(self) -> None:
        self._arguments = Gemma4Arguments()

    def read(self, text: str) -> tuple[int, str]:
        position, arguments = 0, ""
        if self.name is None:
            head = HEAD.match(text)
            if head is None:
                self.failed = END in text
                return 0, ""
            self.name, position = head[1], head.end()
        if not self._arguments.ended:
            position, arguments = self._arguments.read(text, position)
        end = text.find(END, position) if self._arguments.ended else -1
        if end >= 0:
            position, self.done = end + len(END), True
        return position, arguments


class Gemma4Arguments:
    """Reads an object that arrives in parts."""

    def __init__(self) -> None:
        self.ended = False
        self._open: list[str] = []  # brackets that are open
        self._expected = "value"  # key, value, text, key text, or what follows a value: next
        self._is_first = True  # in the innermost brackets

    def read(self, text: str, position: int) -> tuple[int, str]:
        """Return where the text is read up to, and the JSON of what was read."""
        parts = list[str]()
        while not self.ended:
            if self._expected in ("text", "key text"):
                read = self._read_text(text, position)
            else:
                match = BLANKS.match(text, position)
                position = match.end() if match else position
                read = self._read_token(text, position)
            if read is None:
                break
            advanced, part = read
            parts.append(part)
            if advanced == position:
                break
            position = advanced
        return position, "".join(parts)

    def _read_text(self, text: str, position: int) -> tuple[int, str] | None:
        """Read text up to its end, or as much as has arrived."""
        end = text.find(QUOTE, position)
        if end < 0:
            rest = text[position:]
            rest = rest[: len(rest) - begun(rest, QUOTE)]
            return position + len(rest), to_json(rest)[1:-1]
        closing = '": ' if self._expected == "key text" else '"'
        if self._expected == "key text":
            colon = text.find(":", end)
            if colon < 0:
                return None
            self._expected = "value"
        else:
            colon, self._expected = end + len(QUOTE) - 1, "next"
        return colon + 1, to_json(text[position:end])[1:-1] + closing

    def _read_token(self, text: str, position: int) -> tuple[int, str] | None:
        """Read a bracket, a comma, a key or a value. None where more of it is to come."""
        character = text[position : position + 1]
        if not character:
            return None
        if self._expected == "next":
            return self._read_next(character, position)
        if character in "}]":
            missing = "null" if self._expected == "value" and self._open[-1] == "{" else ""
            return position + 1, missing + self._close()
        if self._expected == "key":
            return self._read_key(text, position)
        comma = self._comma() if self._open and self._open[-1] == "[" else ""
        return self._read_value(text, position, comma)

    def _read_next(self, character: str, position: int) -> tuple[int, str]:
        if character == ",":
            self._expected = "key" if self._open[-1] == "{" else "value"
            return position + 1, ""
        return position + 1, self._close() if character in "}]" else ""

    def _read_key(self, text: str, position: int) -> tuple[int, str] | None:
        if text.startswith(QUOTE, position):
            self._expected = "key text"
            return position + len(QUOTE), f'{self._comma()}"'
        if QUOTE.startswith(text[position:]):
            return None
        if text[position] == ",":
            return position + 1, ""
        match = KEY.match(text, position)
        if match is None:
            return None
        self._expected = "value"
        key = match[1].strip(' "')
        return match.end(), f"{self._comma()}{to_json(key)}: "

    def _read_value(self, text: str, position: int, comma: str) -> tuple[int, str] | None:
        character = text[position]
        if character in "{[":
            self._open.append(character)
            self._expected, self._is_first = "key" if character == "{" else "value", True
            return position + 1, comma + character
        if text.startswith(QUOTE, position):
            self._expected = "text"
            return position + len(QUOTE), f'{comma}"'
        match = None
        if not QUOTE.startswith(text[position:]):
            match = (JSON_TEXT if character == '"' else WORD).match(text, position)
        if match is None:
            if comma == "" and self._open[-1] == "[":
                self._is_first = True
            return None
        self._expected = "next"
        word = match[0].strip()
        return match.end(), comma + (word if read_json(word)[1] else to_json(word))

    def _comma(self) -> str:
        comma, self._is_first = "" if self._is_first else ", ", False
        return comma

    def _close(self) -> str:
        bracket = self._open.pop()
        self.ended = not self._open
        self._expected, self._is_first = "next", False
        return "}" if bracket == "{" else "]"
