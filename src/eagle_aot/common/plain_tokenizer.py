"""Tokenizers that need no transformers, whose import takes longer than many an answer.

Of files that are plain in the sense below, transformers (5.17 to 5.23) makes what the `tokenizers`
library reads from `tokenizer.json`, and what jinja2 renders of the template.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_aot.artifact import tokenizer_files
from eagle_aot.common.plain_template import NAMED, compiled, is_plain_template
from eagle_aot.common.strict_json import read_object

if TYPE_CHECKING:
    from eagle_aot.common.prompts import Message

VOCABULARY, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
FILES = {VOCABULARY, SETTINGS, TEMPLATE, "generation_config.json"}
FIXED = {
    "tokenizer_class": ("TokenizersBackend", "PreTrainedTokenizerFast"),
    "backend": ("tokenizers",),
    "clean_up_tokenization_spaces": (False,),
}
"""Settings that must have one of these values, where they are given."""

IDLE = {"model_max_length", "padding_side"}
"""Settings that neither ids nor text depend on."""

EXTRA = "extra_special_tokens"
LARGEST = 100_000
"""Tokens; transformers looks for a mistake in larger vocabularies, and mends it."""


class PlainTokenizer:
    """As much of transformers' tokenizer as is read from files that are plain."""

    def __init__(self, backend: Any, named: Mapping[str, str], template: str | None) -> None:
        """`backend` is the library's tokenizer, `named` are tokens by what they are for."""
        self.backend_tokenizer = backend
        self.chat_template = template
        self.bos_token_id: int | None = None
        if "bos_token" in named:
            self.bos_token_id = backend.token_to_id(named["bos_token"])
        self._named = named

    def ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Of a text. Raises what the library raises."""
        (found,) = self.backend_tokenizer.encode_batch(
            [text], add_special_tokens=add_special_tokens
        )
        ids: list[int] = found.ids
        return ids

    def rendered(self, messages: Sequence["Message"]) -> str:
        """The text of a conversation up to where an answer begins. Raises what jinja2 raises."""
        text: str = self._compiled.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **self._named,
        )
        return text

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of ids."""
        text: str = self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """What the vocabulary calls it."""
        name: str | None = self.backend_tokenizer.id_to_token(token)
        return name

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Tokens that were added to the vocabulary, by their ids."""
        added: Mapping[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        return added

    @cached_property
    def _compiled(self) -> Any:
        assert self.chat_template is not None
        return compiled(self.chat_template)


def read_plain(directory: Path) -> PlainTokenizer | None:
    """The tokenizer in a directory; None where transformers would do more than read it.

    Raises OSError, ValueError, and what the library raises for a file that it cannot read.
    """
    names = {path.name for path in tokenizer_files(directory)}
    if not {VOCABULARY, SETTINGS} <= names <= FILES:
        return None
    settings = read_object(directory / SETTINGS)
    template = (directory / TEMPLATE).read_text("utf-8") if TEMPLATE in names else None
    if not is_plain(settings) or not (template is None or is_plain_template(template)):
        return None
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(directory / VOCABULARY))
    named = {name: settings[name] for name in NAMED if settings.get(name) is not None}
    if not is_whole(backend, {*named.values(), *settings.get(EXTRA, ())}):
        return None
    return PlainTokenizer(backend, named, template)


def is_plain_message(message: "Message") -> bool:
    """Whether a turn is text alone, which transformers hands to a template as it is."""
    texts = (isinstance(value, str) for value in message.values())
    return message.keys() == {"role", "content"} and all(texts)


def is_plain(settings: Mapping[str, Any]) -> bool:
    """Whether all that settings do is name tokens."""
    if "tokenizer_class" not in settings or not isinstance(settings.get(EXTRA, []), list):
        return False
    for key, value in settings.items():
        named = [value] if key in NAMED else value if key == EXTRA else []
        if not all(isinstance(token, str | None) for token in named):
            return False
        if key not in (*NAMED, EXTRA, *IDLE) and value not in FIXED.get(key, ()):
            return False
    return True


def is_whole(backend: Any, special: set[str]) -> bool:
    """Whether there is nothing that transformers would add to a tokenizer or take from it."""
    added = {
        token.content
        for token in backend.get_added_tokens_decoder().values()
        if token.special
        and not (token.normalized or token.single_word or token.lstrip or token.rstrip)
    }
    return (
        special <= added
        and backend.post_processor is not None
        and backend.truncation is None
        and backend.padding is None
        and backend.get_vocab_size() <= LARGEST
    )
