"""The text of a generation as it grows."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.results.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.text.detokenizer import Decode, Detokenizer


class NoStream:
    """Where nobody looks at a text before it is complete."""

    stopped = False

    def ends(self, token: int) -> bool:
        """No text ends it."""
        return False

    def placed(self, logprobs: Sequence[TokenLogprobs]) -> Sequence[TokenLogprobs]:
        """Those of the next tokens, with their offsets where those are known."""
        return logprobs

    def show(self) -> None:
        """To nobody."""

    def close(self, text: str | None) -> str | None:
        """It is as it is."""
        return text


class TextStream(NoStream):
    """Ends before the first of the stop texts, of which no reader sees the beginning either."""

    def __init__(
        self,
        decode: Decode,
        stop_texts: Iterable[str],
        on_text: Callable[[str], None] | None,
        before: str = "",
    ) -> None:
        """`on_text` is handed the text in parts; `before` stands in front of it, and ends nothing.
        Raises SettingError for an empty stop text."""
        self._stops = tuple(stop_texts)
        if "" in self._stops:
            raise SettingError("stop text '': every text contains it: leave it out")
        self._detokenizer = Detokenizer(decode)
        self._on_text = on_text
        self._text = self._before = before
        self._shown = 0  # characters
        self._offsets = deque[int]()  # of tokens, in characters
        self.stopped = False

    def ends(self, token: int) -> bool:
        """Take the next token; whether it completes a stop text."""
        known = len(self._text)
        self._offsets.append(known)
        self._text += self._detokenizer.add(token)
        found = [self._find(stop, known) for stop in self._stops]
        if starts := [start for start in found if start >= 0]:
            self._text, self.stopped = self._text[: min(starts)], True
        return self.stopped

    def placed(self, logprobs: Sequence[TokenLogprobs]) -> Sequence[TokenLogprobs]:
        return [one._replace(offset=self._offsets.popleft()) for one in logprobs]

    def show(self) -> None:
        """Hand on what is new, but not what may be the beginning of a stop text."""
        held = 0 if self.stopped else max((self._held(stop) for stop in self._stops), default=0)
        self._hand_on(self._text[self._shown : len(self._text) - held])

    def close(self, text: str | None) -> str:
        """The whole text, which is `text`, of all tokens, unless a stop text ended it before. The
        rest of it is handed on."""
        text = self._text if self.stopped or text is None else self._before + text
        self._hand_on(text[self._shown :])
        return text

    def _find(self, stop: str, known: int) -> int:
        return self._text.find(stop, max(len(self._before), known - len(stop) + 1))

    def _held(self, stop: str) -> int:
        """The longest end of the text that begins `stop`."""
        longest = min(len(stop) - 1, len(self._text) - len(self._before))
        return next((n for n in range(longest, 0, -1) if self._text.endswith(stop[:n])), 0)

    def _hand_on(self, text: str) -> None:
        self._shown += len(text)
        if text and self._on_text is not None:
            self._on_text(text)
