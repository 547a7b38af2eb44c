from pathlib import Path

import pytest

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import parse_jsonl, read_prompts


def test_each_source_is_read(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("two\nlines\n", encoding="utf-8")
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a", "id": 1}\n\n{"token_ids": [2, 3]}\n', encoding="utf-8")
    odd = tmp_path / "odd.jsonl"
    odd.write_text('\ufeff{"prompt": "a\u2028b"}\r\n', encoding="utf-8")
    assert read_prompts(None, None, odd) == ["a\u2028b"]
    assert read_prompts("one", None, None) == ["one"]
    assert read_prompts(None, file, None) == ["two\nlines\n"]
    assert read_prompts(None, None, lines) == ["a", [2, 3]]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        "{}",
        '{"prompt": 3}',
        "[" * 100_000,
        '{"token_ids": [' + "9" * 5000 + "]}",
        '{"token_ids": ["a"]}',
        '{"token_ids": [true]}',
        '{"prompt": "a", "token_ids": [1]}',
    ],
)
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(PromptError, match="where:2: "):
        list(parse_jsonl(f'{{"prompt": "fine"}}\n{line}', "where"))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(PromptError, match="missing: cannot be read"):
        read_prompts(None, tmp_path / "missing", None)
    with pytest.raises(PromptError, match="binary: cannot be read"):
        read_prompts(None, binary, None)
    with pytest.raises(PromptError, match=r"empty\.jsonl: holds no prompts"):
        read_prompts(None, None, empty)
