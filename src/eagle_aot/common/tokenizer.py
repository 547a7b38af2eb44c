"""The tokenizer and the chat template of an artifact.

The `tokenizers` library reads `tokenizer.json`, and jinja2 renders `chat_template.jinja`. An export
writes these files so that ids and texts equal those of transformers for the target's own files.
transformers itself, which takes seconds to import, is not needed here.
"""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import msgspec

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.errors import ArtifactError, ContextLengthError, PromptError
from eagle_aot.common.prompts import Message, text_of, with_system
from eagle_aot.common.strict_json import read_object
from eagle_aot.common.structs import convert
from eagle_aot.common.token_bytes import TokenBytes, most_bytes_per_token

if TYPE_CHECKING:
    import tokenizers

    from eagle_aot.common.templates.chat_template import ChatTemplate

VOCABULARY, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
FILES = {VOCABULARY, SETTINGS, TEMPLATE, "generation_config.json"}
SPECIAL_TOKENS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
NO_SYSTEM = "the chat template takes no system text: leave it out"
"""The error where a template refuses a system's text, or leaves it out."""

NO_VALUES: Mapping[str, object] = MappingProxyType({})
PANIC = "PanicException"
"""The type of a failed assertion in Rust, which is no Exception and cannot be imported."""


class TokenizerSettings(msgspec.Struct, kw_only=True, omit_defaults=True,
                        forbid_unknown_fields=True):  # fmt: skip
    """`tokenizer_config.json`: tokens that a chat template may name, in `extra_special_tokens` by
    names that only this model has. Each other field has one value, or changes neither ids nor
    text."""

    tokenizer_class: Literal["TokenizersBackend", "PreTrainedTokenizerFast"]
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    sep_token: str | None = None
    pad_token: str | None = None
    cls_token: str | None = None
    mask_token: str | None = None
    backend: Literal["tokenizers"] = "tokenizers"
    clean_up_tokenization_spaces: bool = False
    extra_special_tokens: dict[str, str] | list[str] = []
    model_max_length: float | None = None
    padding_side: str | None = None

    def __post_init__(self) -> None:
        if self.clean_up_tokenization_spaces:
            raise ValueError("clean_up_tokenization_spaces must be false")

    @property
    def special_tokens(self) -> dict[str, str]:
        """The tokens that are set, by their names."""
        extra = self.extra_special_tokens
        values = {name: getattr(self, name) for name in SPECIAL_TOKENS}
        named = {name: token for name, token in values.items() if token is not None}
        return named | (extra if isinstance(extra, dict) else {})


class Tokenizer:
    """Converts text, or the messages of a chat, to token ids, and ids to text."""

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        special_tokens: Mapping[str, str],
        chat_template: str | None,
        context: int | None = None,
    ) -> None:
        """`special_tokens` are those that the template may name: `bos_token`, `eos_token`, ...

        Texts that are too long for `context` tokens in any case are refused before they are
        encoded, which takes two seconds for a million characters.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        self._context = context

    @property
    def has_template(self) -> bool:
        """Whether a prompt can be a turn of a conversation."""
        return bool(self.chat_template)

    @cached_property
    def bos_id(self) -> int | None:
        """The id of the beginning-of-sequence token, None where there is none."""
        bos = self.special_tokens.get("bos_token")
        return None if bos is None else self.backend.token_to_id(bos)

    @cached_property
    def adds_bos(self) -> bool:
        """Whether the tokenizer itself begins every text with a beginning-of-sequence token."""
        return self.bos_id is not None and self.ids("")[:1] == [self.bos_id]

    @cached_property
    def bytes_of(self) -> TokenBytes:
        """The bytes that each token stands for by itself."""
        return TokenBytes(self.backend)

    @cached_property
    def added_ids(self) -> dict[str, int]:
        """The ids of tokens that are read as one wherever a text has them, by their texts."""
        added = self.backend.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items()}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that are no part of a text."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @cached_property
    def max_text_bytes(self) -> int | None:
        """The length of the longest text that may fit the context, None if it is not known."""
        most = None if self._context is None else most_bytes_per_token(self.backend)
        return None if most is None or self._context is None else most * self._context

    def encode(
        self,
        prompt: str | Sequence[Message],
        raw: bool = False,
        system: str | None = None,
        template_values: Mapping[str, object] = NO_VALUES,
    ) -> list[int]:
        """Return the token ids of a prompt as one user turn, of the bare text with `raw`, or of a
        conversation up to where the next answer begins; an assistant's last message is continued.
        `system` is added as `with_system` says. `template_values` are what the template gets by
        name, such as `tools`.

        A beginning-of-sequence token comes first where the tokenizer itself puts one there, and
        never twice. Raises PromptError where there is no chat template for messages or a system's
        text, or where it does not take them.
        """
        if isinstance(prompt, str) and system is None and (raw or not self.has_template):
            ids = self.ids(prompt)
            if self.adds_bos and ids[:2] == [self.bos_id] * 2:  # the text begins with one
                ids = ids[1:]
        else:
            messages, begun = with_system(prompt, system), ""
            if messages[-1]["role"] == "assistant" and len(messages) > 1:
                begun = text_of(messages.pop())
            text = self._render_with_system(messages, template_values) + begun
            ids = self.ids(text, add_special_tokens=False)
            if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
                ids = [self.bos_id, *ids]
        if not ids:
            raise PromptError("the prompt is empty")
        return ids

    def ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; `add_special_tokens` adds what the tokenizer puts around
        every text. Raises PromptError for a text that is not Unicode, or too long."""
        try:
            length = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            why = ""
            if "\udc80" <= text[error.start] <= "\udcff":  # a byte of a command's argument
                why = f": it is not in the locale's encoding, {sys.getfilesystemencoding()}"
            raise PromptError(f"the prompt is not valid Unicode text{why}") from error
        if self.max_text_bytes is not None and length > self.max_text_bytes:
            raise ContextLengthError(
                f"the prompt has {length} bytes, too many for the context of {self._context} "
                "tokens: shorten the prompt or export with a larger --max-seq-len"
            )
        with library_errors("the tokenizer cannot encode the prompt"):
            (encoding,) = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        add_generation_prompt: bool = True,
        template_values: Mapping[str, object] = NO_VALUES,
    ) -> str:
        """Return the text of a conversation, with `add_generation_prompt` up to where an answer
        begins. Raises PromptError where the template refuses it or fails with `template_values`,
        and ArtifactError where it fails without any."""
        values: dict[str, object] = {"tools": None, "documents": None, **self.special_tokens}
        values |= template_values
        values |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        try:
            text: str = self._template.render(**values)
        except PromptError as error:
            raise PromptError(f"the chat template refuses the conversation ({error})") from error
        except Exception as error:  # a template may compute anything, and divide by zero
            kind = PromptError if template_values else ArtifactError
            raise kind(f"the chat template cannot be rendered ({error})") from error
        return text

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = True,
        visible_ids: Collection[int] = (),
    ) -> str:
        """Return the text of ids, without special tokens that are not among `visible_ids`. Raises
        ArtifactError where the tokenizer's decoder fails."""
        if visible_ids and skip_special_tokens:
            ids = [i for i in ids if i in visible_ids or i not in self.special_ids]
            skip_special_tokens = False
        with library_errors("the tokenizer cannot decode these tokens"):
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def word(self, token: int) -> str | None:
        """Return the vocabulary's name of a token."""
        return self.backend.id_to_token(token)

    @cached_property
    def _template(self) -> "ChatTemplate":
        from eagle_aot.common.templates.chat_template import ChatTemplate  # imports jinja2

        return ChatTemplate(self.chat_template or "")

    def _render_with_system(
        self, messages: Sequence[Message], template_values: Mapping[str, object]
    ) -> str:
        """Raises PromptError if the template ignores the system's text."""
        if not self.has_template:
            raise PromptError("there is no chat template: give a prompt without roles")
        system, others = messages[0], messages[1:]
        if system["role"] != "system":
            return self.render(messages, template_values=template_values)
        without = self.render(others, template_values=template_values) if others else ""
        try:
            text = self.render(messages, template_values=template_values)
        except PromptError as error:
            raise PromptError(f"{NO_SYSTEM} ({error.__cause__})") from error
        except ArtifactError as error:
            raise PromptError(NO_SYSTEM) from error
        content = system["content"]
        if text == without and isinstance(content, str) and content.strip() not in text:
            raise PromptError(NO_SYSTEM)
        return text


def read_tokenizer(directory: Path, context: int | None = None) -> Tokenizer:
    """Return the tokenizer in an artifact's directory; `context` is as in `Tokenizer`.

    Raises ArtifactError where there is none, where its files cannot be read, and where they are a
    checkpoint's that mean more than is read here.
    """
    names = {path.name for path in tokenizer_files(directory)}
    if not names:
        raise ArtifactError(f"{directory}: has no tokenizer: give token ids instead of text")
    if others := sorted(names - FILES):
        raise ArtifactError(f"{directory / others[0]}: not a file of an artifact: export again")
    settings = _read_settings(directory / SETTINGS)
    with library_errors(f"{directory}: tokenizer cannot be read"):
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_buffer((directory / VOCABULARY).read_bytes())
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        template = (directory / TEMPLATE).read_text("utf-8") if TEMPLATE in names else None
    special, extra = settings.special_tokens, settings.extra_special_tokens
    unnamed = extra if isinstance(extra, list) else []
    if missing := sorted({*special.values(), *unnamed} - added):
        raise ArtifactError(
            f"{directory / SETTINGS}: names {missing[0]!r}, which {VOCABULARY} lacks: export again"
        )
    return Tokenizer(backend, special, template, context)


def _read_settings(path: Path) -> TokenizerSettings:
    try:
        return convert(read_object(path), TokenizerSettings)
    except msgspec.ValidationError as error:
        raise ArtifactError(
            f"{path}: not the settings of an artifact's tokenizer ({error}): export again"
        ) from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be read ({error})") from error


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Raise ArtifactError with `problem` for what a library raises about a tokenizer."""
    try:
        yield
    except BaseException as error:  # a different type for every kind of damage
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        raise ArtifactError(f"{problem} ({error})") from error
