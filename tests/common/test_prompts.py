import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import is_ids, parse_jsonl, read_prompts


def test_prompts_are_read_from_each_source(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("line", [
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
    '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}',
    '{"messages": []}',
    '{"messages": "a"}',
    '{"messages": [{"role": "user"}]}',
    '{"messages": [{"role": "user", "content": ["a"]}]}',
    '{"messages": [{"role": "usr", "content": "a"}]}',
    '{"messages": [{"role": "assistant", "content": "a"}]}',
    '{"messages": [{"role": "\\ud800", "content": "a"}]}',
])  # fmt: skip
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(PromptError, match="where:2: "):
        list(parse_jsonl(f'{{"prompt": "fine"}}\n{line}', "where"))


def test_messages_are_a_prompt() -> None:
    turns = [{"role": r, "content": c} for r, c in zip(("system", "user"), "ab", strict=True)]
    line = '{"id": 3, "messages": [{"role": "system", "content": "a"}, '
    prompts = list(parse_jsonl(line + '{"role": "user", "content": "b", "name": "Ada"}]}', "where"))
    assert prompts == [turns]
    assert [is_ids(prompt) for prompt in (*prompts, "a", [1, 2], [])] == [False, False, True, True]


@pytest.mark.parametrize(("line", "message"), [
    ('{"messages": [{"role": "user", "content": 3}]}', r"where:1: .*`\$.messages\[0\].content`"),
    ('{"messages": [{"role": "usr", "content": "a"}]}', r"where:1: .*Invalid enum value 'usr'"),
    ('{"messages": []}', "where:1: messages: there are none"),
])  # fmt: skip
def test_an_error_says_what_is_wrong_with_messages(line: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        list(parse_jsonl(line, "where"))


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def stdin(content: bytes) -> SimpleNamespace:
        return SimpleNamespace(buffer=io.BytesIO(content))

    monkeypatch.setattr(sys, "stdin", stdin("two\nlines, naïve\n".encode()))
    assert read_prompts(None, Path("-"), None) == ["two\nlines, naïve\n"]
    monkeypatch.setattr(sys, "stdin", stdin(b'{"prompt": "a"}\n17'))
    with pytest.raises(PromptError, match="standard input:2: expected"):
        read_prompts(None, None, Path("-"))
    monkeypatch.setattr(sys, "stdin", stdin(b"\xff"))
    with pytest.raises(PromptError, match="standard input: cannot be read"):
        read_prompts(None, Path("-"), None)


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
