"""What schemas of arguments say."""

from typing import Any

import jsonschema
import pytest

from eagle_aot.runtime_runner.serve.tool_calls.schemas import closed, types_of

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(("schema", "right", "wrong"), [
    (POINT, {"x": 1}, {"x": 1, "y": 2}),
    ({"properties": {"p": POINT}}, {"p": {"x": 1}}, {"p": {"y": 1}}),
    ({"items": POINT}, [{"x": 1}], [{"y": 1}]),
    ({"properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": {"P": POINT}}, {"p": {}},
     {"p": {"y": 1}}),
    ({"properties": {"p": {"anyOf": [POINT, {"type": "null"}]}}}, {"p": None}, {"p": {"y": 1}}),
    ({"properties": {"properties": POINT}}, {"properties": {"x": 1}}, {"properties": {"y": 1}}),
    (POINT | {"additionalProperties": {"type": "string"}}, {"y": "a"}, {"y": 1}),
    ({"allOf": [POINT, {"properties": {"y": {"type": "integer"}}}]}, {"x": 1, "y": 1}, {"y": "a"}),
    ({"type": "object"}, {"any": "thing"}, []),
])  # fmt: skip
def test_functions_take_no_arguments_that_they_do_not_name(
    schema: dict[str, Any], right: Any, wrong: Any
) -> None:
    jsonschema.validate(right, closed(schema))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, closed(schema))


@pytest.mark.parametrize(("schema", "types"), [
    ({"type": "string"}, {"string"}),
    ({"type": ["integer", "null"]}, {"integer", "null"}),
    ({"enum": ["a", 1, None, True, 1.5, [], {}]},
     {"string", "integer", "null", "boolean", "number", "array", "object"}),
    ({"$ref": "#/$defs/a"}, {"integer"}),
    ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}, {"string", "integer"}),
    ({"anyOf": [{"type": "string"}, {}]}, set()),
    ({"$ref": "#/$defs/loop"}, set()),
    ({"$ref": "#/nowhere"}, set()),
    (True, set()),
])  # fmt: skip
def test_types_of_a_value(schema: Any, types: set[str]) -> None:
    root = {"$defs": {"a": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert types_of(schema, root) == types
