"""Lark grammars of answers, in the dialect that llguidance reads.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md describes it. A marker that is a
token of the tokenizer is written as that token: the same characters in other tokens are text.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written as by Python's json.dumps, which is how templates write it."""
ANY_TEXT = "/(?s:.*)/"
GUIDANCE = "x-guidance"
DEFINITIONS = "$defs", "definitions"


class GrammarWriter:
    """Collects the rules of a grammar."""

    def __init__(
        self,
        markers: Sequence[str] = (),
        token_ids: Mapping[str, int] | None = None,
        hidden_ids: Collection[int] = (),
    ) -> None:
        """`markers` that have `token_ids` are single tokens. `hidden_ids` are tokens that no text
        before a marker has, such as those that end an answer."""
        ids = token_ids or {}
        self._tokens = {marker: ids[marker] for marker in markers if marker in ids}
        self._hidden = frozenset(hidden_ids)
        longest_first = sorted(self._tokens, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        self._markers = re.compile(f"({pattern})") if pattern else None
        self._rules: list[str] = []
        self._count = 0

    def name(self) -> str:
        """Return the name of a rule that is still to be defined."""
        self._count += 1
        return f"r{self._count}"

    def define(self, name: str, body: str, options: str = "") -> None:
        """Add a rule of that name."""
        self._rules.append(f"{name}{options}: {body}")

    def rule(self, body: str, options: str = "") -> str:
        """Add a rule. Returns its name."""
        name = self.name()
        self.define(name, body, options)
        return name

    def literal(self, text: str) -> str:
        """Return the expression of a text, with its markers."""
        parts = [text] if self._markers is None else self._markers.split(text)
        pieces = [
            f"<[{self._tokens[part]}]>" if part in self._tokens else quoted(part)
            for part in parts
            if part
        ]
        return " ".join(pieces) or '""'

    def until(self, marker: str) -> str:
        """Return the expression of any text up to the end of a marker."""
        if marker in self._tokens:
            return f"<[^{ranges(self._hidden | {self._tokens[marker]})}]>* {self.literal(marker)}"
        return self.rule(f"{ANY_TEXT} {quoted(marker)}", "[lazy]")

    def any_tokens(self, marker: str, after: str) -> str:
        """Return the expression of any tokens, special ones, too. Where they have the text of a
        marker, the expression `after` follows. Texts are whole characters if it is no token."""
        if marker in self._tokens:
            return f"<[^{self._tokens[marker]}]>* ({self.literal(marker)} {after})?"
        special = f"<[{ranges(self._hidden)}]>" if self._hidden else '""'
        return f"({ANY_TEXT} {special})* ({ANY_TEXT} | {self.until(marker)} {after})"

    def any_tokens_or(self, marker: str, after: str) -> str:
        """Return the expression of any tokens, special ones, too. Where they begin with the text of
        a marker, the expression `after` follows."""
        special = f"<[{ranges(self._hidden)}]>" if self._hidden else '""'
        begin = self.rule(quoted(marker), "[lazy]")
        return f"({ANY_TEXT} ({special} {ANY_TEXT})* | {begin} {after})"

    def json(
        self, schema: Any, root: Mapping[str, Any] | None = None, *, strict: bool = False
    ) -> str:
        """Add the rule of JSON that matches a schema, whose references are to definitions of
        `root`. Unless it is `strict`, keywords that llguidance does not know are ignored."""
        if not isinstance(schema, Mapping):  # true: any value
            schema = {}
        shared = {key: root[key] for key in DEFINITIONS if root is not None and key in root}
        options = JSON_LAYOUT | ({} if strict else {"lenient": True}) | guidance_of(schema)
        return self.rule("%json " + json.dumps({**shared, **schema, GUIDANCE: options}))

    def grammar(self, start: str) -> str:
        """Return the grammar whose texts are those of an expression."""
        return "\n".join([f"start: {start}", *self._rules])


def guidance_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of llguidance in a schema."""
    options = schema.get(GUIDANCE)
    return options if isinstance(options, dict) else {}


def quoted(text: str) -> str:
    """Return a text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def alternatives(expressions: Sequence[str]) -> str:
    """Return the expression of one of several."""
    return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"


def ranges(ids: Collection[int]) -> str:
    """Return ids as the ranges of a token expression."""
    parts: list[list[int]] = []
    for number in sorted(ids):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
