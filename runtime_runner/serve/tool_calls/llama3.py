"""`{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>`: Llama 3.1 to 3.3.

https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1 describes it. Its templates
refuse a conversation in which one answer has several calls.
"""

import re
from collections.abc import Sequence

from eagle_aot.runtime_runner.serve.tool_calls.grammar import (
    GrammarWriter,
    alternatives,
)
from eagle_aot.runtime_runner.serve.tool_calls.json_calls import HEAD, JsonCallReader, json_rule
from eagle_aot.runtime_runner.serve.tool_calls.protocol import (
    CallReader,
    Function,
    ToolCallFormat,
)

PYTHON_TAG = "<|python_tag|>"
BEGIN = re.compile(r"[\s;,]*(?:<\|python_tag\|>\s*)?(?=\{)")


class Llama3Format(ToolCallFormat):
    """An answer is a call where it begins with an object that has a name and parameters."""

    begin, markers = HEAD, (PYTHON_TAG,)
    several = follows_text = False

    def writes(self, text: str) -> bool:
        return '"parameters"' in text and '"name"' in text

    def find(self, text: str, at_start: bool) -> tuple[int, int] | int:
        if not at_start:
            return len(text)
        if match := BEGIN.match(text):
            return match.span()
        rest = text.lstrip(" \t\r\n;,")
        tagged = rest.removeprefix(PYTHON_TAG)
        is_open = PYTHON_TAG.startswith(rest) or (tagged != rest and not tagged.strip())
        return 0 if is_open else len(text)

    def reader(self, functions: Sequence[Function]) -> CallReader:
        return JsonCallReader()

    def rule(self, writer: GrammarWriter, functions: Sequence[Function]) -> str:
        calls = [json_rule(writer, function, "parameters") for function in functions]
        return writer.rule(alternatives(calls))
