"""The bytes that a token stands for by itself."""

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How SentencePiece names a token that is one byte."""
SPACE = "\u2581"
"""How SentencePiece writes a space."""


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
