"""JSON that is bounded and means one thing."""

import json
from pathlib import Path

import pytest

from eagle_aot.common.strict_json import MAX_BYTES, MAX_DEPTH, read_object


def test_a_plain_object_reads_back(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, {"b": "\u00e4 \U0001f600"}], "": {}, "c": -(2**70)}
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        (tmp_path / "x.json").write_text(text, encoding="utf-8")
        assert read_object(tmp_path / "x.json") == value


def nested(depth: int, kind: str) -> str:
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    return '{"a":' + opening * depth + "1" + closing * depth + "}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[]", "not an object"),
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' twice"),
        ('{"x": {"a": 1, "a": 1}}', "the key 'a' twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ('{"a": 1e999}', "not JSON compliant"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
        ('{"a": ' + "9" * 5000 + "}", "integer string conversion"),
        (nested(MAX_DEPTH, "list"), "nested too deeply"),
        (nested(MAX_DEPTH, "object"), "nested too deeply"),
        (nested(100_000, "list"), "nested too deeply"),
        (nested(100_000, "object"), "nested too deeply"),
        ('{"a": "' + "x" * MAX_BYTES + '"}', "longer than 4 MiB"),
    ],
    ids=str.split("empty list twice inner-twice nan infinity overflow half-a-character long-number "
                  "lists objects very-deep-lists very-deep-objects long"),
)  # fmt: skip
def test_anything_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_object(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValueError, match="utf-8"):
        read_object(tmp_path / "x.json")


def test_the_deepest_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(nested(MAX_DEPTH - 1, "list"))
    assert read_object(tmp_path / "x.json")
