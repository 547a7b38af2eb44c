"""The grammar of arguments as Gemma 4 writes them, from a function's JSON schema.

Numbers, booleans and null are as in JSON. Of texts the keywords enum, const, pattern, minLength and
maxLength count; of lists minItems and maxItems; the rest is in `grammar.py`'s JSON.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_aot.runtime_runner.serve.tool_calls.grammar import (
    GrammarWriter,
    alternatives,
    quoted,
)
from eagle_aot.runtime_runner.serve.tool_calls.protocol import Function
from eagle_aot.runtime_runner.serve.tool_calls.schemas import (
    options_of,
    properties_of,
    resolved,
    type_name,
    types_of,
)

KINDS = ("string", "number", "boolean", "null", "array", "object")
"""The types of a value of no type; an integer is a number."""


def arguments_rule(writer: GrammarWriter, function: Function, quote: str) -> str:
    """Add the rule of a function's arguments, whose texts stand between two `quote`. Returns its
    name."""
    return ArgumentsWriter(writer, function, quote).object(function.schema)


class ArgumentsWriter:
    """Adds rules for the values of one function. A schema that refers to itself has one rule."""

    def __init__(self, writer: GrammarWriter, function: Function, quote: str) -> None:
        self._writer, self._root, self._strict = writer, function.schema, function.strict
        self._quote = quote
        self._names: dict[str, str] = {}  # of rules, by schema

    def value(self, schema: Any) -> str:
        """Return the name of the rule of a value."""
        schema = resolved(schema, self._root)
        key = json.dumps(schema, sort_keys=True)
        if key not in self._names:
            self._names[key] = self._writer.name()  # before its body, which may refer to it
            self._writer.define(self._names[key], self._body(schema))
        return self._names[key]

    def object(self, schema: Any) -> str:
        """Return the expression of an object, whose keys are in alphabetical order."""
        schema = resolved(schema, self._root)
        properties = sorted(properties_of(schema).items(), key=lambda item: item[0].lower())
        if not properties and schema.get("additionalProperties", True) is not False:
            return self._map(schema.get("additionalProperties", True))
        pairs = [
            (f"{quoted(name + ':')} {self.value(value)}", needed)
            for name, (value, needed) in properties
        ]
        return f'"{{" {self._in_order(pairs)} "}}"'

    def _in_order(self, pairs: Sequence[tuple[str, bool]]) -> str:
        """Return the expression of pairs with commas between them; some may be left out."""
        first, later = '""', '""'  # what follows where no pair precedes, and where one does
        for pair, needed in reversed(pairs):
            with_comma = f'("," {pair} {later})'
            without = f"({pair} {later})"
            rest_first, rest_later = first, later
            first = self._writer.rule(without if needed else f"{without} | {rest_first}")
            later = self._writer.rule(with_comma if needed else f"{with_comma} | {rest_later}")
        return first

    def _map(self, schema: Any) -> str:
        """Return the expression of an object of any keys."""
        pair = self._writer.rule(f'/[A-Za-z_][A-Za-z0-9_.-]*/ ":" {self.value(schema)}')
        return f'"{{" ({pair} ("," {pair})*)? "}}"'

    def _body(self, schema: Mapping[str, Any]) -> str:
        if "const" in schema:
            return self._literal(schema["const"])
        if isinstance(schema.get("enum"), Sequence) and schema["enum"]:
            return alternatives([self._literal(value) for value in schema["enum"]])
        if options := options_of(schema):
            return alternatives([self.value(option) for option in options])
        kinds = types_of(schema, self._root) or KINDS
        return alternatives([self._of_type(kind, schema) for kind in sorted(kinds)])

    def _of_type(self, kind: str, schema: Mapping[str, Any]) -> str:
        if kind == "string":
            return self._text(schema)
        if kind == "array":
            return self._list(schema)
        if kind == "object":
            return self.object(schema)
        return self._writer.json({**schema, "type": kind}, self._root, strict=self._strict)

    def _text(self, schema: Mapping[str, Any]) -> str:
        quote = self._writer.literal(self._quote)
        pattern = text_pattern(schema)
        if pattern is None:
            return f"{quote} {self._writer.until(self._quote)}"
        return f"{quote} /{pattern}/ {quote}"

    def _list(self, schema: Mapping[str, Any]) -> str:
        item = self.value(schema.get("items", True))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        least = least if isinstance(least, int) else 0
        if most == 0:
            return '"[" "]"'
        others = f"{{{max(least - 1, 0)},{most - 1}}}" if isinstance(most, int) else "*"
        if others == "*" and least > 1:
            others = f"{{{least - 1},}}"
        items = f'{item} ("," {item}){others}'
        items = items if least else f"({items})?"
        return f'"[" {items} "]"'

    def _literal(self, value: Any) -> str:
        """Return the expression of one value."""
        kind = type_name(value)
        if kind == "string":
            return self._writer.literal(f"{self._quote}{value}{self._quote}")
        if kind == "array":
            return " ".join(('"["', *between([self._literal(item) for item in value]), '"]"'))
        if kind == "object":
            pairs = [f"{quoted(key + ':')} {self._literal(value[key])}" for key in sorted(value)]
            return " ".join(('"{"', *between(pairs), '"}"'))
        return quoted(json.dumps(value))


def between(expressions: Sequence[str]) -> list[str]:
    """Return expressions with commas between them."""
    return [part for expression in expressions for part in ('","', expression)][1:]


def text_pattern(schema: Mapping[str, Any]) -> str | None:
    """Return the regular expression of a text with bounds, None where any text is right."""
    pattern, least, most = (schema.get(key) for key in ("pattern", "minLength", "maxLength"))
    if isinstance(pattern, str):
        start = "" if pattern.startswith("^") else "(?s:.*)"
        end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
        pattern = pattern.removeprefix("^")
        pattern = pattern if end else pattern.removesuffix("$")
        return f"{start}({pattern}){end}".replace("/", "\\/").replace("\n", "\\n")
    if least is None and most is None:
        return None
    return f"(?s:.){{{least or 0},{'' if most is None else most}}}"
