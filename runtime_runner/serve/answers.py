"""What comes of a request's answers, from the engine's thread to a coroutine."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from eagle_aot.runtime_runner.engine import Failed
from eagle_aot.runtime_runner.results.result import Result
from eagle_aot.runtime_runner.serve.worker import Heard


class RequestFailed(Exception):
    """The engine could not go on with a request."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a round, or the end of a prompt, added: `tokens`, all of them drafts but the last, and
    the `text` that is known since; either may be empty."""

    tokens: list[int]
    text: str


Part = tuple[int, Piece | Result]
"""Of the answer with this index: a piece, or at its end all of it."""


class Answers:
    """Of one request, `count` of them. Made in the loop that reads them."""

    def __init__(self, count: int, seconds: float) -> None:
        """They fail unless all have ended within `seconds`."""
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Piece | Heard] | TimeoutError] = asyncio.Queue()
        late = TimeoutError(f"not done within {seconds:g} s: ask for fewer tokens")
        self._timer = self._loop.call_later(seconds, self._queue.put_nowait, late)
        self.count = self._left = count
        self.cancel: Callable[[], None] = lambda: None
        """Ends those that have not ended."""

    def close(self) -> None:
        """Nobody reads any more."""
        self._timer.cancel()
        self.cancel()

    def put(self, index: int, item: Piece | Heard) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, item))

    async def parts(self) -> AsyncIterator[Part]:
        """As they come, to the last answer's end. Raises RequestFailed where the engine does not
        get there with one, and TimeoutError."""
        while self._left:
            part = await self._queue.get()
            if isinstance(part, TimeoutError):
                raise part
            index, item = part
            if isinstance(item, Failed):
                raise RequestFailed(item.error)
            self._left -= isinstance(item, Result)
            yield index, item

    async def whole(self) -> list[Result]:
        """All of them, in order. Raises as `parts` does."""
        ended = {index: item async for index, item in self.parts() if isinstance(item, Result)}
        return [ended[index] for index in sorted(ended)]


class Writer:
    """Callbacks of the answer at `index`, all called in the engine's thread. `times` are when it
    was asked for, when its first token came and when it ended, by one clock, in seconds."""

    def __init__(self, answers: Answers, index: int) -> None:
        self._answers, self._index = answers, index
        self._text: list[str] = []
        self.times = [time.perf_counter()]

    def on_text(self, text: str) -> None:
        """Of the tokens that come next, or of none at the end."""
        self._text.append(text)

    def on_tokens(self, tokens: list[int]) -> None:
        """Of a round."""
        if len(self.times) == 1:
            self.times.append(time.perf_counter())
        self._put(tokens)

    def on_end(self, heard: Heard) -> None:
        """What came of it."""
        if self._text:
            self._put([])
        self.times.append(time.perf_counter())
        self._answers.put(self._index, heard)

    def _put(self, tokens: list[int]) -> None:
        self._answers.put(self._index, Piece(tokens, "".join(self._text)))
        self._text.clear()
