"""Streams of answers, from the engine's thread to a coroutine."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_aot.runtime_runner.engine import Failed, Tokens
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Result
from eagle_aot.runtime_runner.frontend.stream import Detokenizer
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.worker import Outbox, RequestOutcome

INTERNAL_ERROR = "internal error: the server's log says more"
"""What clients read of a bug: its own text may be of anything."""


class RequestFailed(Exception):
    """The engine could not finish a request."""


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """The next part of an answer: its text, which may be empty, its tokens, and, if they were
    requested, how it was drafted and the log probabilities of its tokens."""

    text: str
    trace: dict[str, Any]
    logprobs: Sequence[TokenLogprobs] = ()
    tokens: Sequence[int] = ()


AnswerPart = tuple[int, AnswerDelta | Result]
"""The index of an answer and its next part, or the whole answer at its end."""

StreamItem = AnswerDelta | RequestOutcome | Exception


class AnswerStream:
    """The `count` answers to one request. Made in the event loop that reads them."""

    def __init__(
        self, count: int, seconds: float, metrics: Metrics, outbox: Outbox | None = None
    ) -> None:
        """The stream raises TimeoutError unless all answers have ended within `seconds`. Items go
        through the `outbox` of the one thread that puts them, if there is one."""
        self._metrics, self._outbox = metrics, outbox
        self._started = time.perf_counter()
        self._first_tokens: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, StreamItem]] = asyncio.Queue()
        late = TimeoutError(f"not done within {seconds:g} s: request fewer tokens")
        self._timer = self._loop.call_later(seconds, self.end, late)
        self.count = self._remaining = count
        self.cancel: Callable[[], object] = lambda: None
        """Ends the answers that have not ended."""

    def close(self) -> None:
        """Cancel the answers that have not ended. The stream must not be read afterwards."""
        self._timer.cancel()
        self.cancel()

    def end(self, error: Exception) -> None:
        """Let the stream raise an error after what was put before. Call it in the event loop."""
        self._queue.put_nowait((0, error))

    def put(self, index: int, item: StreamItem) -> None:
        """Add the next item of an answer. May be called in any thread, always the same one for an
        index."""
        self._measure(index, item)
        if self._outbox is not None:
            self._outbox.add(self._loop, self._queue.put_nowait, (index, item))
        else:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, item))

    def _measure(self, index: int, item: StreamItem) -> None:
        seconds = time.perf_counter() - self._started
        if isinstance(item, AnswerDelta):
            self._first_tokens.setdefault(index, seconds)
        elif isinstance(item, Result):
            self._metrics.ended(item, self._first_tokens.get(index), seconds)
        else:
            self._metrics.failed("failed")

    async def parts(self) -> AsyncIterator[AnswerPart]:
        """Yield parts up to the end of the last answer. Raises RequestFailed where the engine
        cannot finish one, TimeoutError, and exceptions that were put."""
        while self._remaining:
            index, item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Failed):
                raise RequestFailed(item.error if item.is_expected else INTERNAL_ERROR)
            self._remaining -= isinstance(item, Result)
            yield index, item

    async def results(self) -> list[Result]:
        """Return all answers, in order. Raises as `parts` does."""
        ended = {index: item async for index, item in self.parts() if isinstance(item, Result)}
        return [ended[index] for index in sorted(ended)]


class StreamWriter:
    """Puts the parts of one answer into a stream, from callbacks in the engine's thread."""

    def __init__(self, stream: AnswerStream, index: int, detokenizer: Detokenizer | None) -> None:
        """With a `detokenizer`, parts have a trace, which says which tokens were drafted."""
        self._stream, self._index, self._detokenizer = stream, index, detokenizer
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        """Text and log probabilities that no part has yet; a prompt's go with the first part."""

    @property
    def callbacks(self) -> Callbacks:
        """The callbacks of the answer's generation."""
        return Callbacks(
            on_text=self._text.append, on_round=self.on_round, on_prompt=self._logprobs.extend
        )

    def on_round(self, tokens: Tokens) -> None:
        """Put a part with the tokens of a round."""
        self._logprobs += tokens.logprobs
        shown = {} if self._detokenizer is None else {"trace": trace(tokens, self._detokenizer)}
        self._put(shown, tokens.tokens)

    def on_end(self, outcome: RequestOutcome) -> None:
        """Put what is left, and the outcome."""
        if self._text or self._logprobs:
            self._put({})
        self._stream.put(self._index, outcome)

    def _put(self, trace: dict[str, Any], tokens: Sequence[int] = ()) -> None:
        delta = AnswerDelta("".join(self._text), trace, [*self._logprobs], tokens)
        self._stream.put(self._index, delta)
        self._text.clear()
        self._logprobs.clear()


def trace(tokens: Tokens, detokenizer: Detokenizer) -> dict[str, Any]:
    """Return the tokens of a round, each with the text that it completes. The first `accepted`
    tokens are drafts."""
    return {
        "tokens": [{"id": token, "text": detokenizer.add(token)} for token in tokens.tokens],
        "drafted": tokens.drafted,
        "accepted": tokens.accepted,
        "ranks": list(tokens.ranks),
    }
