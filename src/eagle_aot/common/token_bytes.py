"""The bytes that a token stands for by itself, and how many one may stand for."""

import json
import re
from collections.abc import Iterator
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How SentencePiece names a token that is one byte."""
SPACE = "\u2581"
"""How SentencePiece writes a space."""
SHRINKING = {"NFC": 3, "NFD": 3, "NFKC": 4, "NFKD": 4, "Prepend": 1}
"""How many bytes these normalizers make one of at most: the Kelvin sign has 3 bytes, as a K one."""
KEEPING = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"}
"""Steps before the model that keep each character, unless their behaviour is to remove some."""


class TokenBytes:
    """The bytes of each token of a `tokenizers` tokenizer."""

    def __init__(self, backend: "Tokenizer") -> None:
        self._piece = backend.id_to_token
        self._added = backend.get_added_tokens_decoder()
        self._byte_level = "ByteLevel" in repr(backend.decoder)

    def __call__(self, token: int) -> bytes:
        """Return a token's bytes, which need not be whole characters: the name of a special token,
        no bytes for an id outside the vocabulary."""
        if (added := self._added.get(token)) is not None:
            return str(added).encode()
        piece = self._piece(token) or ""
        if match := BYTE.fullmatch(piece):
            return bytes.fromhex(match[1])
        if self._byte_level and byte_of_character().keys() >= set(piece):
            return bytes(byte_of_character()[character] for character in piece)
        return piece.replace(SPACE, " ").encode()

    def is_special(self, token: int) -> bool:
        """Whether a token is one that no text contains."""
        return token in self._added and bool(self._added[token].special)


@cache
def byte_of_character() -> dict[str, int]:
    """Return the byte that each character stands for in vocabularies of bytes, as GPT-2's is.

    A byte that Latin-1 prints stands for itself; the others follow from U+0100 on, in order.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    characters = [*map(chr, printed), *(chr(0x100 + i) for i in range(len(others)))]
    return dict(zip(characters, [*printed, *others], strict=True))


def most_bytes_per_token(backend: "Tokenizer") -> int | None:
    """Return how many bytes of a text one token stands for at most, so that longer texts have more
    tokens. None where a step may drop characters, or merge any number of unknown ones."""
    vocabulary = backend.get_vocab()
    steps = [*settings_of(backend.pre_tokenizer)]
    keeps = all(s["type"] in KEEPING and s.get("behavior") != "Removed" for s in steps)
    strips = any(
        token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()
    )
    shrinking = [shrinks_by(step) for step in settings_of(backend.normalizer)]
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    if any(step["type"] == "ByteLevel" for step in steps):
        alphabet = [*byte_of_character()]
    elif not getattr(backend.model, "byte_fallback", False):
        return None
    if strips or not keeps or None in shrinking or not vocabulary.keys() >= set(alphabet):
        return None
    return max(len(piece.encode()) for piece in vocabulary) * prod(filter(None, shrinking))


def settings_of(component: Any) -> Iterator[dict[str, Any]]:
    """Yield the settings of a normalizer or pre-tokenizer, or of the parts of a sequence."""
    states = [] if component is None else [json.loads(component.__getstate__())]
    while states:
        state = states.pop()
        if state["type"] == "Sequence":
            states += state.get("normalizers") or state["pretokenizers"]
        else:
            yield state


def shrinks_by(normalizer: dict[str, Any]) -> int | None:
    """Return how many bytes a normalizer makes one of at most, None for any number."""
    if normalizer["type"] == "Replace":
        before, after = normalizer["pattern"].get("String"), normalizer["content"]
        return 1 if before is not None and len(before.encode()) <= len(after.encode()) else None
    return SHRINKING.get(normalizer["type"])
