"""Tokenizers and templates that never end, take all memory or panic are refused in one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle_aot.common import tokenizer_probe
from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.tokenizer import SETTINGS, TEMPLATE, VOCABULARY
from eagle_aot.common.tokenizer_probe import check_tokenizer
from eagle_aot.targets.family import TINY_DIR

DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TRIPLE = {"type": "Replace", "pattern": {"Regex": "a"}, "content": "aaa"}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped tokenizer, to be changed, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (copy := tmp_path / "tokenizer").mkdir()
    for name in (VOCABULARY, SETTINGS, TEMPLATE):
        shutil.copy(TINY_DIR / "target" / name, copy)
    return copy


def change(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_passed_is_not_tried_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_tokenizer(directory)
    monkeypatch.setattr("subprocess.run", None)
    check_tokenizer(directory)
    (directory / TEMPLATE).write_text("{{ messages }}")
    with pytest.raises(TypeError):
        check_tokenizer(directory)


def test_a_user_without_a_home_has_no_cache(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.chdir(directory)
    check_tokenizer(directory)
    assert {path.name for path in directory.iterdir()} == {VOCABULARY, SETTINGS, TEMPLATE}


@pytest.mark.parametrize(("part", "line"), [
    ({"decoder": {"type": "Strip", "content": "A", "start": 0, "stop": 5}}, "cannot decode these"),
    ({"normalizer": {"type": "Sequence", "normalizers": 7 * [DOUBLE]}}, "characters to "),
    ({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, *5 * [TRIPLE]]}},
     "decodes .* characters to "),
])  # fmt: skip
def test_tokenizers_that_are_programs_are_refused(
    directory: Path, part: dict[str, Any], line: str
) -> None:
    change(directory / VOCABULARY, part)
    with pytest.raises(ArtifactError, match=rf"tokenizer: .*({line})") as refused:
        check_tokenizer(directory)
    assert "\n" not in str(refused.value)
    assert not (directory.parent / "cache").exists(), "nothing is remembered"


@pytest.mark.parametrize(("part", "line"), [
    ({"normalizer": {"type": "Sequence", "normalizers": 30 * [DOUBLE]}}, "takes over|ends its pro"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|a)*(a|a)*(a|aa)*$^"},
      "behavior": "Isolated", "invert": False}}, "cannot encode the prompt|takes over"),
])  # fmt: skip
def test_tokenizers_that_do_not_end_are_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, part: dict[str, Any], line: str
) -> None:
    monkeypatch.setattr(tokenizer_probe, "CPU_SECONDS", 1)
    change(directory / VOCABULARY, part)
    with pytest.raises(ArtifactError, match=rf"tokenizer: .*({line})"):
        check_tokenizer(directory)


@pytest.mark.parametrize(("template", "line"), [
    ("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}", "steps of"),
    ("{{ 'a'.center(10 ** 10) }}", r"calls center\(\), which is not supported"),
    ("{{ ('a' * 90000).replace('a', 'a' * 90000) }}", "a text of a chat template: 8100090000 is"),
    ("a" * (50 << 20), "a chat template: 52428800 is more than 1048576"),
])  # fmt: skip
def test_templates_that_are_bombs_are_refused(directory: Path, template: str, line: str) -> None:
    (directory / TEMPLATE).write_text(template)
    with pytest.raises(ArtifactError, match=line):
        check_tokenizer(directory)


def test_the_template_of_a_checkpoints_settings_is_tried(directory: Path) -> None:
    (directory / TEMPLATE).unlink()
    named = [{"name": "default", "template": "{{ 'a' * 10 ** 9 }}"}]
    for template in (named, named[0]["template"]):
        change(directory / SETTINGS, {"chat_template": template})
        with pytest.raises(ArtifactError, match="a value of a chat template: 1000000000 is more"):
            check_tokenizer(directory)


def test_a_process_that_is_late_is_ended(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_probe, "WALL_SECONDS", 0.01)
    with pytest.raises(ArtifactError, match=r"the tokenizer takes over 0\.01 s"):
        check_tokenizer(directory)


def test_what_a_library_only_refuses_is_left_to_requests(directory: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"<bos>": 0}, "unk_token": "<unk>"}
    change(directory / VOCABULARY, {"model": model, "added_tokens": [], "post_processor": None})
    (directory / TEMPLATE).write_text("{{ raise_exception('no') }}")
    check_tokenizer(directory)
