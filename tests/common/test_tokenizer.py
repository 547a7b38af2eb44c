"""What a tokenizer may not make transformers do: open other files, run code, use the network."""

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from eagle_aot.common.errors import ArtifactError, CheckpointError, PromptError
from eagle_aot.common.prompts import Message, with_system
from eagle_aot.common.tokenizer import Tokenizer
from eagle_aot.export.loading.provenance import find_tokenizer
from eagle_aot.targets import TARGETS

OUTSIDE = "/etc/hostname"
CODE = "open(__file__ + '.ran', 'w')\nclass Mine: pass\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The shipped tokenizer, alone."""
    target_dir = TARGETS["gemma4-tiny"].target_dir
    assert target_dir is not None
    (tmp_path / "artifact").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(target_dir / name, tmp_path / "artifact")
    return tmp_path / "artifact"


def write_keys(path: Path, keys: dict[str, Any]) -> None:
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | keys))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"asked the network for {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("settings", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
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
    ],
)
def test_keys_that_name_files_or_code_are_refused(
    directory: Path, settings: str, key: str, value: Any, what: str
) -> None:
    write_keys(directory / settings, {key: value})
    message = rf"{settings}: '{key}' names {what}, and no tokenizer here may: remove the key"
    with pytest.raises(ArtifactError, match=message + " and export again"):
        Tokenizer(directory)
    with pytest.raises(CheckpointError, match=message):
        find_tokenizer(directory)


def test_a_key_that_names_nothing_is_no_matter(directory: Path, no_network: None) -> None:
    keys = {"tokenizer_file": None, "name_or_path": "someone/repository", "trust_remote_code": True}
    write_keys(directory / "tokenizer_config.json", keys)
    assert Tokenizer(directory).encode("Tom")


def test_only_the_artifacts_own_files_are_interpreted(directory: Path, no_network: None) -> None:
    """Not a config.json with code beside it, nor templates that no manifest lists."""
    expected = Tokenizer(directory).encode("Tom")
    (directory / "mine.py").write_text(CODE)
    auto_map = {"AutoConfig": "mine.Mine", "AutoTokenizer": ["mine.Mine", None]}
    write_keys(directory / "config.json", {"model_type": "mine", "auto_map": auto_map})
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "default.jinja").write_text("{{ 1 / 0 }}")
    (directory / "vocab.json").write_text("{")
    tokenizer = Tokenizer(directory)
    assert tokenizer.encode("Tom") == expected
    assert isinstance(tokenizer.hf.chat_template, str)
    assert not (directory / "mine.py.ran").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": 1, "a": 2}', '{"a":' * 100_000], ids=list("abcd")
)
def test_settings_that_are_no_object_are_refused(directory: Path, text: str) -> None:
    (directory / "tokenizer_config.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"tokenizer_config\.json: cannot be read \("):
        Tokenizer(directory)


def test_a_tokenizer_that_fails_on_a_prompt_is_stated(directory: Path, no_network: None) -> None:
    """A vocabulary without the token for all that it lacks is found out when one is needed."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"Tom": 0}, unk_token="<unk>"))
    tokenizer.save(str(directory / "tokenizer.json"))
    with pytest.raises(ArtifactError, match=r"cannot encode the prompt \(.*UNK"):
        Tokenizer(directory).encode("Ada", raw=True)


QUESTION: Message = {"role": "user", "content": "Who?"}
CONVERSATION: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tom?"},
    {"role": "assistant", "content": "Tom has 3."},
    QUESTION,
]
NO_SYSTEM = "the chat template takes no system text: leave it out"


def test_a_conversation_is_rendered_as_transformers_does(directory: Path) -> None:
    tokenizer = Tokenizer(directory)
    assert isinstance(tokenizer.hf.chat_template, str)
    expected = tokenizer.hf.apply_chat_template(CONVERSATION, add_generation_prompt=True).input_ids
    assert tokenizer.encode(CONVERSATION) == expected
    assert tokenizer.encode(CONVERSATION[1:], system="Be brief.") == expected
    assert tokenizer.encode(CONVERSATION, system="another") == expected
    assert tokenizer.encode("Who?") == tokenizer.encode([QUESTION])
    assert tokenizer.encode("Who?", system="Be brief.") == tokenizer.encode(
        [CONVERSATION[0], QUESTION]
    )


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
def test_what_the_system_says_is_never_passed_over(
    directory: Path, template: str, message: str
) -> None:
    if template:
        (directory / "chat_template.jinja").write_text(template)
    else:
        (directory / "chat_template.jinja").unlink()
    tokenizer = Tokenizer(directory)
    assert tokenizer.encode("Who?")
    with pytest.raises(PromptError, match=message):
        tokenizer.encode("Who?", system="Be brief.")


def test_a_system_text_that_is_the_templates_own_is_taken(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text(
        "{% if messages[0].role != 'system' %}Help.{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tokenizer = Tokenizer(directory)
    assert tokenizer.encode("Who?", system="Help.") == tokenizer.encode("Who?")


def test_messages_need_a_chat_template(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    with pytest.raises(PromptError, match="there is no chat template"):
        Tokenizer(directory).encode(CONVERSATION)


def test_raw_text_has_the_tokenizers_own_ids(directory: Path) -> None:
    tokenizer = Tokenizer(directory)
    assert tokenizer.encode("Tom", raw=True) == tokenizer.hf("Tom").input_ids


def test_messages_keep_their_own_system_text() -> None:
    assert with_system(CONVERSATION, "another") == CONVERSATION
    assert with_system("Who?", None) == [QUESTION]
    assert with_system([QUESTION], "Be brief.") == [CONVERSATION[0], QUESTION]
