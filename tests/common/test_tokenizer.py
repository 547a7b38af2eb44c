"""The tokenizer of an artifact: ids, text and prompts are those that transformers gives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models
from transformers import AutoTokenizer

from eagle_aot.common.errors import ArtifactError, PromptError
from eagle_aot.common.prompts import Message, with_system
from eagle_aot.common.tokenizer import SETTINGS, TEMPLATE, VOCABULARY, read_tokenizer
from eagle_aot.targets.family import TINY_DIR

RANDOM = settings(max_examples=200, deadline=None, derandomize=True, database=None)
SHIPPED = TINY_DIR / "target"
OURS = read_tokenizer(SHIPPED)
THEIRS: Any = AutoTokenizer.from_pretrained(SHIPPED)
SPECIAL = ["<pad>", "<bos>", "<eos>", "<|turn>", "<turn|>"]
TEXTS = st.lists(st.one_of(st.text(), st.sampled_from([*SPECIAL, " ", "\n", "Ada has 27 "]))).map(
    "".join
)
QUESTION: Message = {"role": "user", "content": "Who?"}
CONVERSATION: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tom?"},
    {"role": "assistant", "content": "Tom has 3."},
    QUESTION,
]
NO_SYSTEM = "the chat template takes no system text: leave it out"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The shipped tokenizer, to be changed."""
    for name in (VOCABULARY, SETTINGS, TEMPLATE):
        shutil.copy(SHIPPED / name, tmp_path)
    return tmp_path


def update(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@RANDOM
@given(text=TEXTS, special=st.booleans(), ids=st.lists(st.integers(0, 1030)))
def test_ids_and_text_are_those_of_transformers(text: str, special: bool, ids: list[int]) -> None:
    assert OURS.ids(text, special) == THEIRS(text, add_special_tokens=special).input_ids
    for skip in (True, False):
        expected = THEIRS.decode(ids, skip_special_tokens=skip)
        assert OURS.decode(ids, skip_special_tokens=skip) == expected
    for token in ids:
        assert OURS.word(token) == THEIRS.convert_ids_to_tokens(token)


def test_special_tokens_are_those_of_transformers() -> None:
    assert OURS.bos_id == THEIRS.bos_token_id == 2
    assert OURS.special_tokens == THEIRS.special_tokens_map
    added, expected = OURS.backend.get_added_tokens_decoder(), THEIRS.added_tokens_decoder
    assert {i: repr(token) for i, token in added.items()} == {
        i: repr(token) for i, token in expected.items()
    }


def test_a_conversation_has_the_ids_of_transformers() -> None:
    expected = THEIRS.apply_chat_template(CONVERSATION, add_generation_prompt=True).input_ids
    assert OURS.encode(CONVERSATION) == expected
    assert OURS.encode(CONVERSATION[1:], system="Be brief.") == expected
    assert OURS.encode(CONVERSATION, system="another") == expected
    assert OURS.encode("Who?") == OURS.encode([QUESTION])
    assert OURS.encode("Who?", system="Be brief.") == OURS.encode([CONVERSATION[0], QUESTION])


def test_raw_text_has_the_ids_of_transformers() -> None:
    assert OURS.encode("Tom", raw=True) == THEIRS("Tom").input_ids


def test_truncation_and_padding_of_the_file_are_ignored(directory: Path) -> None:
    truncation = {
        "direction": "Right", "max_length": 3, "stride": 0, "strategy": "LongestFirst",
    }  # fmt: skip
    update(directory / VOCABULARY, {"truncation": truncation})
    assert read_tokenizer(directory).encode("Tom has 27 pears") == OURS.encode("Tom has 27 pears")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", NO_SYSTEM),
        (
            "{% if messages[0].role == 'system' %}{{ raise_exception('not supported') }}{% endif %}"
            "{{ messages[0].content }}",
            rf"{NO_SYSTEM} \(not supported\)",
        ),
        ("", "there is no chat template: give a prompt without roles"),
    ],
)
def test_a_system_text_that_the_template_ignores_is_refused(
    directory: Path, template: str, message: str
) -> None:
    if template:
        (directory / TEMPLATE).write_text(template)
    else:
        (directory / TEMPLATE).unlink()
    tokenizer = read_tokenizer(directory)
    assert tokenizer.encode("Who?")
    with pytest.raises(PromptError, match=message):
        tokenizer.encode("Who?", system="Be brief.")


def test_a_system_text_that_the_template_has_itself_is_accepted(directory: Path) -> None:
    (directory / TEMPLATE).write_text(
        "{% if messages[0].role != 'system' %}Help.{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tokenizer = read_tokenizer(directory)
    assert tokenizer.encode("Who?", system="Help.") == tokenizer.encode("Who?")


def test_messages_need_a_chat_template(directory: Path) -> None:
    (directory / TEMPLATE).unlink()
    with pytest.raises(PromptError, match="there is no chat template"):
        read_tokenizer(directory).encode(CONVERSATION)


def test_messages_keep_their_own_system_text() -> None:
    assert with_system(CONVERSATION, "another") == CONVERSATION
    assert with_system("Who?", None) == [QUESTION]
    assert with_system([QUESTION], "Be brief.") == [CONVERSATION[0], QUESTION]


@pytest.mark.parametrize("begun", ["Tom has", "", "Tom has 3.\n\nTom has"])
def test_the_assistants_last_message_is_continued_as_transformers_does(begun: str) -> None:
    turns: list[Message] = [*CONVERSATION, {"role": "assistant", "content": begun}]
    text = THEIRS.apply_chat_template(turns, tokenize=False, continue_final_message=True)
    if not begun:  # transformers finds the last message by its text
        text = THEIRS.apply_chat_template(turns[:-1], tokenize=False, add_generation_prompt=True)
    assert OURS.encode(turns) == THEIRS(text, add_special_tokens=False).input_ids
    parts: Message = {"role": "assistant", "content": [{"type": "text", "text": begun}]}
    assert OURS.encode([*turns[:-1], parts]) == OURS.encode(turns)


def test_a_system_text_alone_is_a_conversation(directory: Path) -> None:
    system = CONVERSATION[:1]
    expected = THEIRS.apply_chat_template(system, add_generation_prompt=True, return_dict=False)
    assert OURS.encode(system) == expected
    (directory / TEMPLATE).write_text("{{ messages[0].nothing.more }}")
    with pytest.raises(PromptError, match=NO_SYSTEM):
        read_tokenizer(directory).encode(system)


def test_a_template_may_refuse_a_conversation(directory: Path) -> None:
    (directory / TEMPLATE).write_text("{{ raise_exception('no') }}")
    with pytest.raises(PromptError, match=r"the chat template refuses the conversation \(no\)"):
        read_tokenizer(directory).encode(CONVERSATION)


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{% if %}", "{{ 'a'.center(9) }}"])
def test_a_template_that_fails_is_an_error_of_the_artifact(directory: Path, template: str) -> None:
    (directory / TEMPLATE).write_text(template)
    with pytest.raises(ArtifactError, match=r"the chat template cannot be rendered \("):
        read_tokenizer(directory).encode(CONVERSATION)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": 1, "a": 2}', '{"a":' * 100_000], ids=list("abcd")
)
def test_settings_that_are_no_object_are_refused(directory: Path, text: str) -> None:
    (directory / SETTINGS).write_text(text)
    with pytest.raises(ArtifactError, match=r"tokenizer_config\.json: cannot be read \("):
        read_tokenizer(directory)


@pytest.mark.parametrize(("key", "value", "message"), [
    ("tokenizer_class", "LlamaTokenizer", "Invalid enum value 'LlamaTokenizer'"),
    ("clean_up_tokenization_spaces", True, "must be false"),
    ("add_bos_token", False, "unknown field `add_bos_token`"),
    ("chat_template", "{{ messages[0].content }}", "unknown field `chat_template`"),
    ("unk_token", {"__type": "AddedToken", "content": "<pad>"}, "Expected `str . null`"),
    ("auto_map", {"AutoTokenizer": ["mine.Mine", None]}, "unknown field `auto_map`"),
    ("tokenizer_file", "/etc/hostname", "unknown field `tokenizer_file`"),
])  # fmt: skip
def test_settings_of_a_checkpoint_are_refused(
    directory: Path, key: str, value: Any, message: str
) -> None:
    update(directory / SETTINGS, {key: value})
    line = rf"tokenizer_config\.json: not the settings .* \(.*{message}.*\): export again"
    with pytest.raises(ArtifactError, match=line):
        read_tokenizer(directory)


@pytest.mark.parametrize("key", ["unk_token", "extra_special_tokens"])
def test_special_tokens_outside_the_vocabulary_are_refused(directory: Path, key: str) -> None:
    update(directory / SETTINGS, {key: "<unk>" if key == "unk_token" else ["<unk>"]})
    with pytest.raises(ArtifactError, match=r"names '<unk>', which tokenizer\.json lacks: export"):
        read_tokenizer(directory)


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer.model"])
def test_files_of_a_checkpoint_are_refused(directory: Path, name: str) -> None:
    (directory / name).write_text("{}")
    with pytest.raises(ArtifactError, match=rf"{name}: not a file of an artifact: export again"):
        read_tokenizer(directory)


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has no tokenizer: give token ids instead of text"):
        read_tokenizer(tmp_path)


def test_a_vocabulary_that_cannot_encode_a_prompt_is_an_error(directory: Path) -> None:
    """The vocabulary lacks its own unknown token, which is noticed when a prompt needs it."""
    made = tokenizers.Tokenizer(models.WordLevel({"Tom": 0, "Ada": 1}, unk_token="<unk>"))
    made.add_special_tokens(SPECIAL)
    made.save(str(directory / VOCABULARY))
    with pytest.raises(ArtifactError, match=r"cannot encode the prompt \(.*UNK"):
        read_tokenizer(directory).encode("Zoe", raw=True)


def test_a_decoder_that_panics_is_an_error_of_the_artifact(directory: Path) -> None:
    """The library then raises what is no Exception."""
    update(
        directory / VOCABULARY,
        {"decoder": {"type": "Strip", "content": "A", "start": 0, "stop": 5}},
    )
    tokenizer = read_tokenizer(directory)
    with pytest.raises(ArtifactError, match=r"^the tokenizer cannot decode these tokens"):
        tokenizer.decode(tokenizer.ids("A"))


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = read_tokenizer(directory, 100)
    longest = max(len(piece.encode()) for piece in OURS.backend.get_vocab())
    assert tokenizer.max_text_bytes == 100 * longest
    fitting = "a" * (100 * longest)
    assert tokenizer.encode(fitting, raw=True) == OURS.encode(fitting, raw=True)
    monkeypatch.setattr(tokenizer, "backend", None)
    line = rf"^the prompt has {100 * longest + 1} bytes, too many for the context of 100 tokens"
    with pytest.raises(PromptError, match=line):
        tokenizer.encode(fitting + "a", raw=True)
    for content in ("a" * 4_000_000, "é" * 2_000_000, " a" * 2_000_000):
        with pytest.raises(PromptError, match="too many for the context"):
            tokenizer.encode([{"role": "user", "content": content}])
