"""What JSON schemas say about values that a format does not write as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

MAX_REFERENCES = 32
"""The longest chain of references, and the deepest nesting, that is followed."""
MAX_DEPTH = 100
"""Of a schema and of arguments; llguidance's limit is 128."""
NESTED = dict, list
COMBINED = "anyOf", "oneOf"
SCHEMAS_BY_NAME = "properties", "$defs", "definitions"
OPENING = frozenset((
    *("additionalProperties", "patternProperties", "unevaluatedProperties"),
    *("$ref", "allOf", "anyOf", "oneOf", "if"),
))  # fmt: skip
"""Keywords that say which other properties an object has."""


def is_deep(value: Any) -> bool:
    """Return whether lists and objects of a value are nested more deeply than libraries take."""
    level = [value]
    for _ in range(MAX_DEPTH):
        lists = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, NESTED)]
        level = [each for items in lists for each in items]
    return bool(level)


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema after its references to definitions of `root`; empty for any value and for
    references that lead nowhere."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        if "$ref" not in schema:
            return schema
        schema = referenced(str(schema["$ref"]), root)
    return {}


def referenced(path: str, root: Mapping[str, Any]) -> Any:
    """Return the part of `root` that a path such as `#/$defs/Color` names."""
    value: Any = root
    for part in path.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def closed(schema: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return a schema whose objects have no other properties than those that it names, unless it
    says that they may: a function takes no others, and small models invent them."""
    changed = dict(schema)
    if depth == MAX_REFERENCES:
        return changed
    for key, value in schema.items():
        if key in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            changed[key] = {name: closed_value(each, depth) for name, each in value.items()}
        elif key in COMBINED and isinstance(value, list):
            changed[key] = [closed_value(each, depth) for each in value]
        elif key == "items":
            changed[key] = closed_value(value, depth)
    if isinstance(schema.get("properties"), Mapping) and not OPENING.intersection(schema):
        changed["additionalProperties"] = False
    return changed


def closed_value(schema: Any, depth: int) -> Any:
    """Return a schema within another one as `closed` does; true and false stay."""
    return closed(schema, depth + 1) if isinstance(schema, Mapping) else schema


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows; empty where it names none."""
    schema = resolved(schema, root)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, Sequence):
        return frozenset(map(str, kind))
    if "enum" in schema or "const" in schema:
        return frozenset(map(type_name, schema.get("enum", [schema.get("const")])))
    options = options_of(schema)
    if depth > MAX_REFERENCES or not options:
        return frozenset()
    kinds = [types_of(option, root, depth + 1) for option in options]
    return frozenset().union(*kinds) if all(kinds) else frozenset()


def options_of(schema: Mapping[str, Any]) -> list[Any]:
    """Return the alternatives of a schema, none where it has none."""
    lists = (schema.get(key) for key in COMBINED)
    return next((list(options) for options in lists if isinstance(options, Sequence)), [])


def type_name(value: object) -> str:
    """Return the JSON type of a value."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def properties_of(schema: Mapping[str, Any]) -> dict[str, tuple[Any, bool]]:
    """Return the properties of an object by name, each with whether it is required."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = set(required) if isinstance(required, Sequence) else set()
    known = properties if isinstance(properties, Mapping) else {}
    names = [*known, *(name for name in needed if name not in known)]
    return {name: (known.get(name, True), name in needed) for name in names}
