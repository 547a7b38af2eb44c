"""Forms of answers, and whether a text has one, by other means than those that hold answers to it.

jsonschema judges JSON, jiter reads JSON that is cut, and `regex` finds beginnings of matches.
"""

import json
from typing import Any

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
NESTED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["red", "blé", "日本"]}, "maxItems": 2},
        "size": {
            "type": "object",
            "properties": {"n": NUMBER, "x": {"type": "number"}},
            "required": ["n", "x"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
RECURSIVE = {
    "type": "object",
    "properties": {"v": NUMBER, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["v", "next"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"why": {"type": "string"}, "answer": {"type": "integer"}},
    "required": ["why", "answer"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "nested": {"json_schema": NESTED},
    "recursive": {"json_schema": RECURSIVE},
    "answer": {"json_schema": ANSWER},
    "regex": {"regex": r"(yes|no), [A-Z][a-zé]{1,6} has [0-9]{1,3}\."},
    "grammar": {"grammar": 'start: item (", " item)~1..3\nitem: /[0-9]{1,3}/ " + " /[0-9]{1,3}/'},
    "choices": {"choices": ("Paris", "Par", "London is large", "12 marbles", "12")},
}
SUMS = r"\d{1,3} \+ \d{1,3}(, \d{1,3} \+ \d{1,3}){1,3}"


def has_form(structure: dict[str, Any], text: str, is_cut: bool = False) -> bool:
    """Return whether a text has one of the forms, or if it is cut begins an answer that has it."""
    if "json_schema" in structure:
        schema = structure["json_schema"]
        return begins_json(schema, text) if is_cut else is_valid(schema, text)
    if "choices" in structure:
        return any(c.startswith(text) if is_cut else c == text for c in structure["choices"])
    import regex  # transformers needs it, too

    return bool(regex.fullmatch(structure.get("regex", SUMS), text, partial=is_cut))


def is_valid(schema: dict[str, Any], text: str) -> bool:
    """Return whether a text is JSON that a schema allows."""
    import jsonschema  # of the `test` extra

    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def begins_json(schema: dict[str, Any], text: str) -> bool:
    """Return whether an object that a schema allows may begin with a text.

    A name or a string that is cut is left out, so any properties may be missing.
    """
    import jiter  # of the `test` extra, by openai
    import jsonschema

    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # which jiter passes over
            return False
    try:
        value = jiter.from_json(text.encode(), partial_mode=True)
        jsonschema.validate(value, without_required(schema))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def without_required(schema: Any) -> Any:
    """Return a schema that requires no properties."""
    if isinstance(schema, list):
        return [without_required(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: without_required(part) for name, part in schema.items() if name != "required"}
