"""Conversion of a target's tokenizer: what it permits, and that nothing but its files changes."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from eagle_aot.common.errors import CheckpointError
from eagle_aot.common.prompts import Message
from eagle_aot.common.tokenizer import SETTINGS, TEMPLATE, VOCABULARY, read_tokenizer
from eagle_aot.export.loading.tokenizer import convert_tokenizer, is_readable_as, write_tokenizer
from eagle_aot.targets.family import TINY_DIR

OUTSIDE = "/etc/hostname"
CODE = "open(__file__ + '.ran', 'w')\nclass Mine: pass\n"
TEXTS = ["<eos> Tom  has 27 pears , <eos>", " naïve\n\n<pad>x<|turn>", "", "  It is n't ."]
CHAT: list[Message] = [{"role": "user", "content": " Who? "}]

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The shipped tokenizer, to be changed."""
    (tmp_path / "target").mkdir()
    for name in (VOCABULARY, SETTINGS, TEMPLATE):
        shutil.copy(TINY_DIR / "target" / name, tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"the network was used: {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def write_keys(path: Path, keys: dict[str, Any]) -> None:
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | keys))


def set_key(name: str, value: Any) -> Change:
    return lambda stored: stored.update({name: value})


def change_token(**changes: Any) -> Change:
    return lambda stored: stored["added_tokens"][1].update(changes)


def test_the_shipped_tokenizer_needs_no_conversion() -> None:
    directory = TINY_DIR / "target"
    assert is_readable_as(convert_tokenizer(directory), directory)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (SETTINGS, set_key("tokenizer_class", "LlamaTokenizer")),
        (SETTINGS, set_key("tokenizer_class", "GPT2Tokenizer")),
        (SETTINGS, set_key("tokenizer_class", "Qwen2Tokenizer")),
        (SETTINGS, set_key("tokenizer_class", None)),
        (SETTINGS, lambda stored: stored.pop("tokenizer_class")),
        (SETTINGS, set_key("clean_up_tokenization_spaces", True)),
        (SETTINGS, set_key("add_bos_token", False)),
        (SETTINGS, set_key("add_eos_token", True)),
        (SETTINGS, set_key("add_prefix_space", True)),
        (SETTINGS, set_key("chat_template", "{{ eos_token }}{{ messages[0].content }}")),
        (SETTINGS, set_key("unk_token", {"__type": "AddedToken", "content": "<pad>"})),
        (SETTINGS, set_key("unk_token", "<unk>")),  # not in the vocabulary yet
        (SETTINGS, set_key("extra_special_tokens", {"image_token": "<eos>"})),
        (SETTINGS, set_key("extra_special_tokens", {"a": "<eos>", "b": "Tom"})),
        (SETTINGS, set_key("extra_special_tokens", ["Tom"])),
        (VOCABULARY, change_token(lstrip=True)),
        (VOCABULARY, change_token(special=False)),
        (VOCABULARY, set_key("post_processor", None)),
        (VOCABULARY, set_key("truncation", {"direction": "Right", "max_length": 3, "stride": 0,
                                            "strategy": "LongestFirst"})),
    ],
)  # fmt: skip
def test_a_converted_tokenizer_gives_what_transformers_gives(
    directory: Path, tmp_path: Path, name: str, change: Change
) -> None:
    stored = json.loads((directory / name).read_text())
    change(stored)
    (directory / name).write_text(json.dumps(stored))
    theirs: Any = AutoTokenizer.from_pretrained(directory)
    write_tokenizer(convert_tokenizer(directory), tmp_path)
    again: Any = AutoTokenizer.from_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path)
    for text in TEXTS:
        for special in (True, False):
            ids = theirs(text, add_special_tokens=special).input_ids
            assert ours.ids(text, special) == ids
            assert again(text, add_special_tokens=special).input_ids == ids
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.special_tokens == theirs.special_tokens_map == again.special_tokens_map
    expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert ours.render(CHAT) == expected


def test_the_default_of_several_templates_is_the_one(directory: Path, tmp_path: Path) -> None:
    (directory / TEMPLATE).unlink()
    templates = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "{{ messages[0].content }}"},
    ]
    write_keys(directory / SETTINGS, {"chat_template": templates})
    write_tokenizer(convert_tokenizer(directory), tmp_path)
    assert read_tokenizer(tmp_path).render(CHAT) == " Who? "
    write_keys(directory / SETTINGS, {"chat_template": templates[:1]})
    with pytest.raises(CheckpointError, match="multiple chat templates with no default"):
        convert_tokenizer(directory)


def test_a_target_without_a_template_has_none(directory: Path, tmp_path: Path) -> None:
    (directory / TEMPLATE).unlink()
    write_tokenizer(convert_tokenizer(directory), tmp_path)
    assert not read_tokenizer(tmp_path).has_template


@pytest.mark.parametrize(("change", "difference"), [
    (set_key("split_special_tokens", True), "the ids of ' <s></s><bos>"),
    (
        lambda stored: stored.update(
            clean_up_tokenization_spaces=True,
            clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
        ),
        "the text of the ids of .Hello , world !",
    ),
])  # fmt: skip
def test_tokenizers_that_tokenizer_json_cannot_represent_are_refused(
    directory: Path, change: Change, difference: str
) -> None:
    stored = json.loads((directory / SETTINGS).read_text())
    change(stored)
    (directory / SETTINGS).write_text(json.dumps(stored))
    line = rf"target: tokenizer\.json cannot represent its tokenizer: {difference}.* differ"
    with pytest.raises(CheckpointError, match=line):
        convert_tokenizer(directory)


@pytest.mark.parametrize("settings", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(("key", "value", "what"), [
    ("auto_map", {"AutoTokenizer": ["mine.Mine", None]}, "code"),
    ("auto_map", {"AutoTokenizer": ["someone/repository--mine.Mine", None]}, "code"),
    ("init_inputs", [OUTSIDE], "code"),
    ("fast_tokenizer_files", ["../../../etc/tokenizer.4.0.json"], "a file"),
    ("tokenizer_file", OUTSIDE, "a file"),
    ("vocab_file", OUTSIDE, "a file"),
    ("merges_file", OUTSIDE, "a file"),
    ("spm_file", OUTSIDE, "a file"),
    ("gguf_file", f"..{OUTSIDE}", "a file"),
    ("special_tokens_map_file", OUTSIDE, "a file"),
])  # fmt: skip
def test_keys_that_name_files_or_code_are_refused(
    directory: Path, settings: str, key: str, value: Any, what: str
) -> None:
    write_keys(directory / settings, {key: value})
    message = rf"{settings}: '{key}' names {what}, and no tokenizer here may: remove the key"
    with pytest.raises(CheckpointError, match=message):
        convert_tokenizer(directory)


def test_a_key_without_a_file_is_ignored(directory: Path, no_network: None) -> None:
    keys = {"tokenizer_file": None, "name_or_path": "someone/repository", "trust_remote_code": True}
    write_keys(directory / SETTINGS, keys)
    assert convert_tokenizer(directory).encode("Tom")


def test_only_the_tokenizers_own_files_are_read(directory: Path, no_network: None) -> None:
    """A config.json with code next to it is not read, nor are templates that are not listed."""
    expected = convert_tokenizer(directory).encode("Tom")
    (directory / "mine.py").write_text(CODE)
    auto_map = {"AutoConfig": "mine.Mine", "AutoTokenizer": ["mine.Mine", None]}
    write_keys(directory / "config.json", {"model_type": "mine", "auto_map": auto_map})
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "default.jinja").write_text("{{ 1 / 0 }}")
    (directory / "vocab.json").write_text("{")
    tokenizer = convert_tokenizer(directory)
    assert tokenizer.encode("Tom") == expected
    assert isinstance(tokenizer.chat_template, str)
    assert not (directory / "mine.py.ran").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": 1, "a": 2}', '{"a":' * 100_000], ids=list("abcd")
)
def test_settings_that_are_no_object_are_refused(directory: Path, text: str) -> None:
    (directory / SETTINGS).write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: cannot be read \("):
        convert_tokenizer(directory)


def test_a_damaged_vocabulary_is_refused(directory: Path) -> None:
    (directory / VOCABULARY).write_text("{")
    with pytest.raises(CheckpointError, match="target: tokenizer cannot be read"):
        convert_tokenizer(directory)
