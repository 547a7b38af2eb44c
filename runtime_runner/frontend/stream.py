"""The text of a generation as it grows: tokens to text, one at a time, up to a stop text."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs

Decode = Callable[[list[int]], str]
MAX_CHARACTER_BYTES = 4  # of UTF-8
INCOMPLETE = "\ufffd"
"""The text that a tokenizer decodes an incomplete character to."""
CONTEXT_TOKENS = 8
"""Tokens of a prompt that an answer is decoded after, more where these have no text."""


def context_of(decode: Decode, prompt: Sequence[int]) -> list[int]:
    """Return the last tokens of a prompt, which an answer is decoded after: a decoder may drop the
    first space of a text. No tokens where the prompt ends within a character."""
    length = CONTEXT_TOKENS
    while not decode(list(prompt[-length:])) and length < len(prompt):
        length *= 2
    for start in range(MAX_CHARACTER_BYTES):  # tokens that are bytes may begin within a character
        context = list(prompt[-length - start :])
        if not decode(context).endswith(INCOMPLETE):
            return context
    return []


def decode_answer(decode: Decode, prompt: Sequence[int], answer: Sequence[int]) -> str:
    """Return the text that an answer adds to the text of its prompt."""
    context = context_of(decode, prompt)
    before, text = decode(context), decode([*context, *answer])
    return text.removeprefix(before) if text.startswith(before) else decode([*answer])


class Detokenizer:
    """Decodes one token after another.

    It decodes each token together with a few tokens before it, at first those of the prompt,
    because they may change its text, such as a space in front.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        self._context = context_of(decode, prompt)  # then of the last text and the one before it
        self._pending: list[int] = []  # tokens after it that have no text yet

    def add(self, token: int) -> str:
        """Return the text that `token` completes: whole characters, empty for a special token."""
        self._pending.append(token)
        context = self._decode(self._context)
        text = self._decode([*self._context, *self._pending])
        if len(text) <= len(context) or text.endswith(INCOMPLETE):
            return ""
        self._context, self._pending = self._pending, []
        return text[len(context) :]


class TextStream:
    """The text of a generation. Passes text on as it grows, and ends it before the first of the
    stop texts: no reader sees the beginning of one.

    Without `decode` it has neither text nor stop texts, and tokens have no offsets.
    """

    def __init__(
        self,
        decode: Decode | None = None,
        stop_texts: Iterable[str] = (),
        on_text: Callable[[str], None] | None = None,
        prefix: str = "",
        prompt: Sequence[int] = (),
    ) -> None:
        """`on_text` is called with parts of the text. `prefix` precedes the text, and no stop text
        is looked for in it. The tokens follow those of the `prompt`. Raises SettingError for an
        empty stop text."""
        self._stops = tuple(stop_texts)
        if "" in self._stops:
            raise SettingError("stop text '': every text contains it: leave it out")
        self._detokenizer = None if decode is None else Detokenizer(decode, prompt)
        self._on_text = on_text
        self._text = self._prefix = prefix
        self._passed_on = 0  # characters
        self._offsets = deque[int]()  # of tokens, in characters
        self.stopped = False
        """Whether a stop text ended the generation."""

    def add(self, token: int) -> bool:
        """Read the next token. Returns whether it completes a stop text."""
        if self._detokenizer is None:
            return False
        length = len(self._text)
        self._offsets.append(length)
        self._text += self._detokenizer.add(token)
        positions = [self._find(stop, length) for stop in self._stops]
        if starts := [start for start in positions if start >= 0]:
            self._text, self.stopped = self._text[: min(starts)], True
        return self.stopped

    def with_offsets(self, logprobs: Sequence[TokenLogprobs]) -> Sequence[TokenLogprobs]:
        """Return the log probabilities of the next tokens, with their offsets."""
        if self._detokenizer is None:
            return logprobs
        return [token._replace(offset=self._offsets.popleft()) for token in logprobs]

    def flush(self) -> None:
        """Pass new text on, except what may be the beginning of a stop text."""
        withheld = 0
        if not self.stopped:
            withheld = max((self._begun(stop) for stop in self._stops), default=0)
        self._pass_on(self._text[self._passed_on : len(self._text) - withheld])

    def finish(self, text: str | None) -> str | None:
        """Pass the rest of the text on. Returns all of it; `text` is that of all tokens."""
        if self._detokenizer is None:
            return text
        text = self._text if self.stopped or text is None else self._prefix + text
        self._pass_on(text[self._passed_on :])
        return text

    def _find(self, stop: str, length: int) -> int:
        """Return where `stop` begins, -1 where it does not; the text had `length` characters
        before the last token."""
        return self._text.find(stop, max(len(self._prefix), length - len(stop) + 1))

    def _begun(self, stop: str) -> int:
        """Return the length of the longest end of the text that begins `stop`."""
        longest = min(len(stop) - 1, len(self._text) - len(self._prefix))
        return next((n for n in range(longest, 0, -1) if self._text.endswith(stop[:n])), 0)

    def _pass_on(self, text: str) -> None:
        self._passed_on += len(text)
        if text and self._on_text is not None:
            self._on_text(text)
