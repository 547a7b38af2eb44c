"""What a token stands for by itself."""

import re
from functools import cache
from typing import Any

BYTE = re.compile("<0x([0-9A-F]{2})>")
"""How SentencePiece names a token that is one byte."""
BLANK = "\u2581"
"""How it writes a space."""


class TokenBytes:
    """Of all tokens of a tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self._piece = tokenizer.convert_ids_to_tokens
        self._added = tokenizer.added_tokens_decoder
        self._byte_level = "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder)

    def __call__(self, token: int) -> bytes:
        """Maybe no whole characters; the name of a special token, nothing of an id without one."""
        if (added := self._added.get(token)) is not None:
            return str(added).encode()
        piece = self._piece(token) or ""
        if found := BYTE.fullmatch(piece):
            return bytes.fromhex(found[1])
        if self._byte_level and byte_of().keys() >= set(piece):
            return bytes(byte_of()[character] for character in piece)
        return piece.replace(BLANK, " ").encode()

    def is_special(self, token: int) -> bool:
        """Whether no text has it."""
        return token in self._added and bool(self._added[token].special)


@cache
def byte_of() -> dict[str, int]:
    """By the character that stands for it where each byte is one, as in GPT-2's tokenizer."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # slow to import

    return {character: byte for byte, character in bytes_to_unicode().items()}
