"""Text to token ids and back, with the artifact's own tokenizer.

transformers opens files that tokenizer_config.json names wherever they are (up to 5.23 at least
`fast_tokenizer_files`, before 5 any vocabulary), offers to run code that `auto_map` names, and
reads a directory's config.json and additional templates unasked: nothing of that happens here.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.errors import ArtifactError, PromptError
from eagle_aot.common.plain_tokenizer import is_plain_message, read_plain
from eagle_aot.common.process import held_stderr
from eagle_aot.common.prompts import Message, with_system
from eagle_aot.common.strict_json import read_object
from eagle_aot.common.token_bytes import TokenBytes

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
"""Whose keys become arguments of the tokenizer's class."""

CODE = ("auto_map", "init_inputs")
"""Keys that choose code, or its arguments by position."""

FILES = ("_file", "_files")
"""How keys that name files end."""

NO_SYSTEM = "the chat template takes no system text: leave it out"
"""What to say where it refuses one, or passes it over."""

PANIC = "PanicException"
"""What a failed assertion in Rust becomes, which Python cannot import and is no Exception."""


class Tokenizer:
    """The tokenizer and chat template in an artifact's directory."""

    def __init__(self, directory: Path) -> None:
        """No file outside the directory is opened, no network, and no code that its files name.

        Raises ArtifactError when there is none, when it asks for such, or cannot be read.
        """
        if not tokenizer_files(directory):
            raise ArtifactError(f"{directory}: has no tokenizer: give token ids instead of text")
        if problem := tokenizer_problem(directory):
            raise ArtifactError(f"{problem} and export again")
        self._directory = directory
        with self._stated():
            self._plain = read_plain(directory)
        if self._plain is None:
            _ = self.hf

    @cached_property
    def hf(self) -> Any:
        """transformers' own, which takes a second to import."""
        from transformers import AutoTokenizer

        with self._stated(), alone(self._directory) as copies, held_stderr():
            return AutoTokenizer.from_pretrained(
                copies, local_files_only=True, trust_remote_code=False
            )

    @contextmanager
    def _stated(self) -> Iterator[None]:
        """Raise ArtifactError for what is wrong with a file."""
        try:
            yield
        except BaseException as error:  # a different type for every kind of damage
            if not isinstance(error, Exception) and type(error).__name__ != PANIC:
                raise
            raise ArtifactError(f"{self._directory}: tokenizer cannot be read ({error})") from error

    def encode(
        self, prompt: str | Sequence[Message], raw: bool = False, system: str | None = None
    ) -> list[int]:
        """Token ids of a prompt as one user turn, of the bare text with `raw`, or of a conversation
        up to where the next answer begins. `system` is what `with_system` says.

        A beginning-of-sequence token comes first where the tokenizer itself puts one there, and
        never twice. Raises PromptError where there is no chat template for messages or a system's
        text, or where it does not take them.
        """
        if isinstance(prompt, str) and system is None and (raw or not self.has_template):
            ids = self._ids(prompt)
        else:
            text = self._render(with_system(prompt, system))
            ids = self._ids(text, add_special_tokens=False)
            if self.adds_bos and ids[:1] != [self._used.bos_token_id]:
                ids = [self._used.bos_token_id, *ids]
        if not ids:
            raise PromptError("the prompt is empty")
        return ids

    @property
    def has_template(self) -> bool:
        """Whether a prompt can be a turn of a conversation."""
        return bool(self._used.chat_template)

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer itself begins every text with a beginning-of-sequence token."""
        bos = self._used.bos_token_id
        return bos is not None and self._ids("")[:1] == [bos]

    def _ids(self, text: str, **options: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError("the prompt is not valid Unicode text") from error
        try:
            if self._plain is not None:
                return self._plain.ids(text, **options)
            ids: list[int] = self.hf(text, **options).input_ids
        except Exception as error:  # tokenizers' own, which have no type
            raise ArtifactError(f"the tokenizer cannot encode the prompt ({error})") from error
        return ids

    def _render(self, messages: Sequence[Message]) -> str:
        """Raises PromptError where a template has no place for what the system says."""
        if not self.has_template:
            raise PromptError("there is no chat template: give a prompt without roles")
        system, others = messages[:1], messages[1:]
        if system[0]["role"] != "system":
            return self._apply(messages)
        without = self._apply(others)
        try:
            text = self._apply(messages)
        except ArtifactError as error:
            raise PromptError(f"{NO_SYSTEM} ({error.__cause__})") from error
        said = system[0]["content"]
        if text == without and isinstance(said, str) and said.strip() not in text:
            raise PromptError(NO_SYSTEM)
        return text

    def _apply(self, messages: Sequence[Message]) -> str:
        try:
            if self._plain is not None and all(map(is_plain_message, messages)):
                return self._plain.rendered(messages)
            text: str = self.hf.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template may compute anything, and divide by zero
            raise ArtifactError(f"the chat template cannot be rendered ({error})") from error
        return text

    def decode(self, ids: list[int]) -> str:
        """Text of generated ids, special tokens left out."""
        text: str = self._used.decode(ids, skip_special_tokens=True)
        return text

    def word(self, token: int) -> str | None:
        """What the vocabulary calls a token."""
        name: str | None = self._used.convert_ids_to_tokens(token)
        return name

    @property
    def _used(self) -> Any:
        return self.hf if self._plain is None else self._plain

    @cached_property
    def bytes_of(self) -> TokenBytes:
        """What each token stands for by itself."""
        return TokenBytes(self._used)


def tokenizer_problem(directory: Path) -> str:
    """Why a tokenizer must not be loaded: it cannot be read, or names files or code of its own.

    Empty where nothing is wrong.
    """
    for name in SETTINGS:
        path = directory / name
        if not path.is_file():
            continue
        try:
            settings = read_object(path)
        except (OSError, ValueError) as error:
            return f"{path}: cannot be read ({error})"
        for key, value in settings.items():
            if value is not None and (key in CODE or key.endswith(FILES)):
                what = "code" if key in CODE else "a file"
                return f"{path}: {key!r} names {what}, and no tokenizer here may: remove the key"
    return ""


@contextmanager
def alone(directory: Path) -> Iterator[Path]:
    """A directory of copies of the tokenizer's files and nothing else, for the time of a load."""
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as copies:
        for path in tokenizer_files(directory):
            shutil.copyfile(path, os.path.join(copies, path.name))
        yield Path(copies)
