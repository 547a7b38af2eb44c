"""Tokenizers that are read without transformers: the same ids, texts and prompts as with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.plain_tokenizer import PlainTokenizer, read_plain
from eagle_aot.common.prompts import Message
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.targets import TARGETS

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True, database=None)
VOCABULARY, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SHIPPED = TARGETS["gemma4-tiny"].target_dir
assert SHIPPED is not None
THEIRS: Any = AutoTokenizer.from_pretrained(SHIPPED)
SPECIAL = ["<pad>", "<bos>", "<eos>", "<|turn>", "<turn|>"]
TEXTS = st.lists(st.one_of(st.text(), st.sampled_from([*SPECIAL, " ", "\n", "Ada has 27 "]))).map(
    "".join
)


def plain(directory: Path) -> PlainTokenizer:
    found = read_plain(directory)
    assert found is not None
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The shipped tokenizer, to be changed."""
    assert SHIPPED is not None
    for name in (VOCABULARY, CONFIG, TEMPLATE):
        shutil.copy(SHIPPED / name, tmp_path)
    return tmp_path


def test_transformers_changes_nothing_of_a_plain_one() -> None:
    assert SHIPPED is not None
    assert plain(SHIPPED).backend_tokenizer.to_str() == THEIRS.backend_tokenizer.to_str()


@SETTINGS
@given(text=TEXTS, special=st.booleans(), ids=st.lists(st.integers(0, 1030)))
def test_ids_and_texts_are_those_of_transformers(text: str, special: bool, ids: list[int]) -> None:
    assert SHIPPED is not None
    ours = plain(SHIPPED)
    assert ours.ids(text, special) == THEIRS(text, add_special_tokens=special).input_ids
    for skipped in (True, False):
        expected = THEIRS.decode(ids, skip_special_tokens=skipped)
        assert ours.decode(ids, skip_special_tokens=skipped) == expected
    for token in ids:
        assert ours.convert_ids_to_tokens(token) == THEIRS.convert_ids_to_tokens(token)


def test_what_is_asked_of_its_tokens_is_the_same() -> None:
    assert SHIPPED is not None
    ours = plain(SHIPPED)
    assert ours.bos_token_id == THEIRS.bos_token_id == 2
    found, expected = ours.added_tokens_decoder, THEIRS.added_tokens_decoder
    assert {i: repr(token) for i, token in found.items()} == {
        i: repr(token) for i, token in expected.items()
    }


CONVERSATIONS: list[list[Message]] = [
    [{"role": "user", "content": "  Who?\n"}],
    [
        {"role": "system", "content": 'Be <brief> & "plain".'},
        {"role": "user", "content": "Tom?"},
        {"role": "assistant", "content": "<turn|>"},
        {"role": "user", "content": ""},
    ],
]
PLAIN = [
    (SHIPPED / TEMPLATE).read_text(),
    "{{ bos_token }}{% for m in messages %}\n  {% if loop.first %}\n{{ m.content }}\n  {% endif %}"
    "\n{% endfor %}{{ eos_token }}|{{ unk_token }}|{{ tools is none }}|{{ documents }}",
    "{% for m in messages if m['role'] != 'system' %}{{ m.content | trim | upper | e }}"
    "{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}model:{% endif %}",
    "{% set x = messages[-1] %}{% macro f(a) %}[{{ a }}]{% endmacro %}"
    "{{ f(x.role) }}{{ x.missing }}{% for i in range(2) %}{{ i }}{% endfor %}",
]


@pytest.mark.parametrize("template", PLAIN, ids=range(len(PLAIN)))
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=len)
def test_prompts_are_those_of_transformers(
    directory: Path, template: str, messages: list[Message]
) -> None:
    (directory / TEMPLATE).write_text(template)
    theirs = AutoTokenizer.from_pretrained(directory)
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert plain(directory).rendered(messages) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages %}{{ raise_exception('roles must alternate') }}{% endif %}",
        "{{ 1 / (messages | length - messages | length) }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages[0].content.unheard_of() }}",
    ],
)
def test_templates_fail_as_with_transformers(directory: Path, template: str) -> None:
    (directory / TEMPLATE).write_text(template)
    theirs = AutoTokenizer.from_pretrained(directory)
    with pytest.raises(Exception) as expected:
        theirs.apply_chat_template(CONVERSATIONS[0], tokenize=False)
    with pytest.raises(ArtifactError) as found:
        Tokenizer(directory).encode(CONVERSATIONS[0])
    assert plain(directory) is not None
    assert str(found.value) == f"the chat template cannot be rendered ({expected.value})"


@pytest.mark.parametrize(
    "template",
    [
        "{{ strftime_now('%Y') }}",
        "{{ messages | tojson }}",
        "{% set n = namespace(a=1) %}{{ n.a }}",
        "{{ dict(a=1) }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{{ enable_thinking }}",
        "{% if %}",
        "{{ messages | unheard_of }}",
    ],
)
def test_templates_with_more_in_them_are_left_to_transformers(
    directory: Path, template: str
) -> None:
    (directory / TEMPLATE).write_text(template)
    assert read_plain(directory) is None


def set_key(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda stored: stored.update({name: value})


def change_token(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda stored: stored["added_tokens"][1].update(changes)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (CONFIG, set_key("tokenizer_class", "LlamaTokenizer")),
        (CONFIG, set_key("tokenizer_class", None)),
        (CONFIG, lambda stored: stored.pop("tokenizer_class")),
        (CONFIG, set_key("clean_up_tokenization_spaces", True)),
        (CONFIG, set_key("add_bos_token", False)),
        (CONFIG, set_key("add_prefix_space", True)),
        (CONFIG, set_key("split_special_tokens", True)),
        (CONFIG, set_key("chat_template", "{{ messages[0].content }}")),
        (CONFIG, set_key("unk_token", {"__type": "AddedToken", "content": "<pad>"})),
        (CONFIG, set_key("unk_token", "<unk>")),  # no token so far
        (CONFIG, set_key("extra_special_tokens", {"image_token": "<eos>"})),
        (CONFIG, set_key("extra_special_tokens", ["Tom"])),
        (VOCABULARY, change_token(lstrip=True)),
        (VOCABULARY, change_token(special=False)),
        (VOCABULARY, set_key("post_processor", None)),
        (VOCABULARY, set_key("truncation", {"direction": "Right", "max_length": 3, "stride": 0,
                                            "strategy": "LongestFirst"})),
    ],
)  # fmt: skip
def test_files_that_transformers_reads_its_own_way_are_left_to_it(
    directory: Path, name: str, change: Callable[[dict[str, Any]], None]
) -> None:
    stored = json.loads((directory / name).read_text())
    change(stored)
    (directory / name).write_text(json.dumps(stored))
    assert read_plain(directory) is None
    theirs = AutoTokenizer.from_pretrained(directory)
    text = "<eos> Tom  has 27 pears , <eos>"
    assert Tokenizer(directory).encode(text, raw=True) == theirs(text).input_ids


@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json"])
def test_more_files_are_left_to_transformers(directory: Path, name: str) -> None:
    (directory / name).write_text("{}")
    assert read_plain(directory) is None
