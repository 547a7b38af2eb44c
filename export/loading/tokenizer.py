"""The target's tokenizer, as transformers reads it, in the files that a runner reads.

transformers opens files that `tokenizer_config.json` names wherever they are, runs code that
`auto_map` names, and reads a directory's `config.json` and additional templates: none of that is
permitted here.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.errors import ArtifactError, CheckpointError
from eagle_aot.common.process import captured_stderr
from eagle_aot.common.prompts import Message
from eagle_aot.common.strict_json import read_object
from eagle_aot.common.tokenizer import (
    SETTINGS,
    SPECIAL_TOKENS,
    TEMPLATE,
    VOCABULARY,
    Tokenizer,
    library_errors,
    read_tokenizer,
)

SETTINGS_FILES = (SETTINGS, "special_tokens_map.json")
"""Files whose keys become arguments of the tokenizer's class."""

CODE = ("auto_map", "init_inputs")
"""Keys that choose code, or its arguments by position."""

FILE_KEYS = ("_file", "_files")
"""How keys that name files end."""

SAMPLE_TEXTS = (
    "Hello , world ! It is n't  27 %...\n\t— naïve 中文 😀",
    " <s></s><bos><eos><|im_start|>user<|im_end|> ",
)
SAMPLE_CHAT: list[Message] = [
    {"role": "user", "content": "  Who is Tom?\n"},
    {"role": "assistant", "content": "A <friend> & 'more'."},
    {"role": "user", "content": "And Ada?"},
]


def convert_tokenizer(directory: Path) -> Tokenizer:
    """Return a checkpoint's tokenizer, read by transformers, as a runner will have it.

    No file outside the directory is opened, no network is used, and no code that its files name is
    run. Raises CheckpointError for a tokenizer that names such, that cannot be read, or that
    `tokenizer.json` and one chat template cannot represent.
    """
    check_settings(directory)
    problem = f"{directory}: tokenizer cannot be read"
    try:
        with library_errors(problem), tempfile.TemporaryDirectory(prefix="tokenizer-") as copies:
            for path in tokenizer_files(directory):
                shutil.copyfile(path, Path(copies) / path.name)
            original = _read_by_transformers(Path(copies))
            converted = _convert(original)
            difference = find_difference(original, converted)
    except ArtifactError as error:
        raise CheckpointError(str(error)) from error
    if difference:
        raise CheckpointError(
            f"{directory}: tokenizer.json cannot represent its tokenizer: {difference}"
        )
    return converted


def write_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the files that `read_tokenizer` reads."""
    special = tokenizer.special_tokens
    settings = {
        "tokenizer_class": "TokenizersBackend",
        **{name: token for name, token in special.items() if name in SPECIAL_TOKENS},
        "extra_special_tokens": {
            name: token for name, token in special.items() if name not in SPECIAL_TOKENS
        },
    }
    tokenizer.backend.save(str(directory / VOCABULARY))
    (directory / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    if tokenizer.chat_template is not None:
        (directory / TEMPLATE).write_text(tokenizer.chat_template, "utf-8")


def is_readable_as(tokenizer: Tokenizer, directory: Path) -> bool:
    """Whether a runner would read this tokenizer from the files of a directory as they are."""
    try:
        stored = read_tokenizer(directory)
    except ArtifactError:
        return False
    return (
        stored.backend.to_str() == tokenizer.backend.to_str()
        and stored.special_tokens == tokenizer.special_tokens
        and stored.chat_template == tokenizer.chat_template
    )


def find_difference(original: Any, converted: Tokenizer) -> str:
    """Return where a tokenizer of transformers and its conversion differ on samples, empty where
    they do not. They may both refuse a sample."""
    for text in SAMPLE_TEXTS:
        for special in (True, False):
            encoding = _try(original, text, add_special_tokens=special)
            ids = None if encoding is None else encoding.input_ids
            if _try(converted.ids, text, special) != ids:
                return f"the ids of {text!r} differ"
            decoded = _try(original.decode, ids, skip_special_tokens=special)
            if _try(converted.decode, ids, special) != decoded:
                return f"the text of the ids of {text!r} differs"
    rendered = _try(
        original.apply_chat_template, SAMPLE_CHAT, tokenize=False, add_generation_prompt=True
    )
    if converted.has_template and _try(converted.render, SAMPLE_CHAT) != rendered:
        return "the text of a chat differs"
    return ""


def _try(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return None where a call fails: libraries and templates raise anything."""
    try:
        return call(*arguments, **options)
    except Exception:
        return None


def check_settings(directory: Path) -> None:
    """Raise CheckpointError for settings that cannot be read, or that name files or code."""
    for path in (directory / name for name in SETTINGS_FILES):
        if not path.is_file():
            continue
        try:
            settings = read_object(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error})") from error
        for key, value in settings.items():
            if value is not None and (key in CODE or key.endswith(FILE_KEYS)):
                what = "code" if key in CODE else "a file"
                raise CheckpointError(
                    f"{path}: {key!r} names {what}, and no tokenizer here may: remove the key"
                )


def _read_by_transformers(directory: Path) -> Any:
    from transformers import AutoTokenizer  # slow to import

    with captured_stderr():
        return AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )


def _convert(original: Any) -> Tokenizer:
    """Raises ValueError for a tokenizer that is none of the `tokenizers` library."""
    from tokenizers import Tokenizer as Backend

    backend = getattr(original, "backend_tokenizer", None)
    if not isinstance(backend, Backend):
        raise ValueError(f"{type(original).__name__} has no tokenizer.json")
    has_template = bool(original.chat_template)
    template = original.get_chat_template() if has_template else None  # of several the default
    return Tokenizer(Backend.from_str(backend.to_str()), original.special_tokens_map, template)
