"""The text of one token after the other."""

from collections.abc import Callable

Decode = Callable[[list[int]], str]
HALF = "\ufffd"
"""What a character is decoded to while bytes of it are missing."""


class Detokenizer:
    """Decodes the last few tokens alone: what a token's text is, and whether a blank stands before
    it, may depend on the one before."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._context: list[int] = []  # tokens up to the last text, from the text before it on
        self._waiting: list[int] = []  # behind it, without text so far

    def add(self, token: int) -> str:
        """The text that `token` completes: whole characters, and nothing for a special token."""
        self._waiting.append(token)
        before = self._decode(self._context)
        text = self._decode([*self._context, *self._waiting])
        if len(text) <= len(before) or text.endswith(HALF):
            return ""
        self._context, self._waiting = self._waiting, []
        return text[len(before) :]
