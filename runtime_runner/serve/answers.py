"""What comes of a request's answers, from the engine's thread to a coroutine."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_aot.runtime_runner.engine import Failed, Tokens
from eagle_aot.runtime_runner.frontend.generation import Callbacks
from eagle_aot.runtime_runner.frontend.result import Result
from eagle_aot.runtime_runner.frontend.stream import Detokenizer
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.outbox import Outbox
from eagle_aot.runtime_runner.serve.worker import Heard


class RequestFailed(Exception):
    """The engine could not go on with a request."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What is known of an answer since the piece before: `text`, which may be empty, and where they
    were asked for how it came about and the `logprobs` of tokens."""

    text: str
    trace: dict[str, Any]
    logprobs: Sequence[TokenLogprobs] = ()


Part = tuple[int, Piece | Result]
"""Of the answer with this index: a piece, or at its end all of it."""

Item = Piece | Heard | Exception


class Answers:
    """Of one request, `count` of them, which `metrics` counts. Made in the loop that reads them."""

    def __init__(
        self, count: int, seconds: float, metrics: Metrics, outbox: Outbox | None = None
    ) -> None:
        """They fail unless all have ended within `seconds`. What is put goes through the `outbox`
        of the one thread that puts, if there is one."""
        self._metrics, self._outbox = metrics, outbox
        self._asked = time.perf_counter()
        self._first_tokens: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
        late = TimeoutError(f"not done within {seconds:g} s: ask for fewer tokens")
        self._timer = self._loop.call_later(seconds, self._queue.put_nowait, (0, late))
        self.count = self._left = count
        self.cancel: Callable[[], None] = lambda: None
        """Ends those that have not ended."""

    def close(self) -> None:
        """Nobody reads any more."""
        self._timer.cancel()
        self.cancel()

    def put(self, index: int, item: Item) -> None:
        """From any thread, but from one for each index."""
        self._measure(index, item)
        if self._outbox is not None:
            self._outbox.add(self._loop, self._queue.put_nowait, (index, item))
        else:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, item))

    def _measure(self, index: int, item: Item) -> None:
        now = time.perf_counter() - self._asked
        if isinstance(item, Piece):
            self._first_tokens.setdefault(index, now)
        elif isinstance(item, Result):
            self._metrics.ended(item, self._first_tokens.get(index), now)
        else:
            self._metrics.failed("failed")

    async def parts(self) -> AsyncIterator[Part]:
        """As they come, to the last answer's end. Raises RequestFailed where the engine does not
        get there with one, TimeoutError, and whatever else was put."""
        while self._left:
            index, item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Failed):
                raise RequestFailed(item.error)
            self._left -= isinstance(item, Result)
            yield index, item

    async def whole(self) -> list[Result]:
        """All of them, in order. Raises as `parts` does."""
        ended = {index: item async for index, item in self.parts() if isinstance(item, Result)}
        return [ended[index] for index in sorted(ended)]


class Writer:
    """Callbacks of the answer at `index`, all called in the engine's thread."""

    def __init__(self, answers: Answers, index: int, trace: Detokenizer | None) -> None:
        """With `trace`, pieces say which tokens were drafted."""
        self._answers, self._index, self._trace = answers, index, trace
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []

    @property
    def callbacks(self) -> Callbacks:
        """All of them that a generation calls."""
        return Callbacks(on_text=self.on_text, on_round=self.on_round, on_prompt=self.on_prompt)

    def on_prompt(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Of the prompt's next tokens, which are told of with the first of the answer."""
        self._logprobs += logprobs

    def on_text(self, text: str) -> None:
        """Of the tokens that come next, or of none at the end."""
        self._text.append(text)

    def on_round(self, told: Tokens) -> None:
        """What it added."""
        trace = {"trace": self._traced(told, self._trace)} if self._trace else {}
        self._logprobs += told.logprobs
        self._put(trace)

    def on_end(self, heard: Heard) -> None:
        """What came of it."""
        if self._text or self._logprobs:
            self._put({})
        self._answers.put(self._index, heard)

    def _put(self, trace: dict[str, Any]) -> None:
        self._answers.put(self._index, Piece("".join(self._text), trace, self._logprobs))
        self._text, self._logprobs = [], []

    def _traced(self, told: Tokens, detokenizer: Detokenizer) -> dict[str, Any]:
        """The tokens, of which the first `accepted` are drafts, each with the text it completes."""
        tokens = [{"id": token, "text": detokenizer.add(token)} for token in told.tokens]
        drafts = {"drafted": told.drafted, "accepted": told.accepted, "ranks": list(told.ranks)}
        return {"tokens": tokens, **drafts}
