"""Generations: requests to the engine, and their results."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.request import (
    Event,
    Failed,
    Finished,
    Request,
    RequestId,
    RequestTimes,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.frontend.stream import TextStream
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One generation.

    `cached_tokens` of the prompt were in the cache already. `token_ids` includes the token that
    ended the generation. `logprobs` has an item for each of them, `prompt_logprobs` for each token
    of the prompt; they are None unless they were requested. `text` ends before a stop text and is
    None without a tokenizer. `finish_reason` is stop, length, context or cancelled. `drafter` is
    None where nothing was to be drafted. `parameters` include the seed: with them the same prompt
    gives the same tokens again. `times` is None for a request that never had a cache.
    """

    prompt_tokens: int
    cached_tokens: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs] | None
    text: str | None
    finish_reason: str
    executor: str
    drafter: str | None
    parameters: GenerationParams
    stats: Stats
    times: RequestTimes | None

    @property
    def ids(self) -> str:
        """The token ids as text, printed where there is no tokenizer."""
        return " ".join(map(str, self.token_ids))

    def to_json(self) -> dict[str, Any]:
        """Return the fields of `eagle-run --json`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "new_tokens": len(self.token_ids),
            "token_ids": self.token_ids,
            "logprobs": _to_json(self.logprobs),
            "prompt_logprobs": _to_json(self.prompt_logprobs),
            "text": self.text,
            "finish_reason": self.finish_reason,
            **self.stats.to_json(),
            "executor": self.executor,
            "drafter": self.drafter,
            "seed": self.parameters.seed,
            "parameters": self.parameters.to_json(),
        }


def _to_json(logprobs: Sequence[TokenLogprobs] | None) -> list[dict[str, Any]] | None:
    return None if logprobs is None else [token.to_json() for token in logprobs]


def finish_reason(
    new_tokens: int, stopped: bool, remaining_tokens: int, max_new_tokens: int
) -> str:
    """Return why a generation ended: at a stop token or text, at `max_new_tokens`, at the end of
    the context, which left `remaining_tokens`, or because it was cancelled."""
    if stopped:
        return "stop"
    if new_tokens == max_new_tokens:
        return "length"
    return "context" if new_tokens == remaining_tokens else "cancelled"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions that a generation calls as it grows."""

    on_tokens: Callable[[list[int]], None] = lambda tokens: None
    on_text: Callable[[str], None] | None = None
    cancelled: Callable[[], bool] = lambda: False
    on_round: Callable[[Tokens], None] = lambda tokens: None
    """Called with the tokens of `on_tokens` and with what was drafted for them."""
    on_prompt: Callable[[Sequence[TokenLogprobs]], None] = lambda logprobs: None
    """Called with the log probabilities of a prompt's next tokens, before all other callbacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A request to the engine and what it has produced so far.

    `text` reads the request's tokens and may end it; `prompt_text` reads the tokens of its prompt
    whose log probabilities were requested. `decode` returns the text of ids, None without a
    tokenizer. `parameters` are None for a request that was made without any.
    """

    request: Request
    parameters: GenerationParams | None = None
    text: TextStream = field(default_factory=TextStream)
    prompt_text: TextStream = field(default_factory=TextStream)
    decode: Callable[[list[int]], str | None] = lambda ids: None
    callbacks: Callbacks = Callbacks()
    executor: str = ""
    drafter: str | None = None
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, event: Event) -> Result | Failed | None:
        """Process the request's next event. Returns the outcome after the last one, else None.

        Calls the callbacks and raises what they raise.
        """
        if isinstance(event, Failed):
            return event
        if isinstance(event, Finished):
            return self.result(event)
        if isinstance(event, Scored):
            self._take_prompt(event)
        else:
            self._take_tokens(event)
        return None

    def _take_prompt(self, event: Scored) -> None:
        for token in event.logprobs:
            self.prompt_text.add(token.id)  # which has no stop texts
        logprobs = self.prompt_text.with_offsets(event.logprobs)
        self.prompt_logprobs.extend(logprobs)
        self.callbacks.on_prompt(logprobs)

    def _take_tokens(self, event: Tokens) -> None:
        if event.logprobs:
            event = replace(event, logprobs=self.text.with_offsets(event.logprobs))
        self.output.extend(event.tokens)
        self.logprobs.extend(event.logprobs)
        self.text.flush()
        self.callbacks.on_tokens(event.tokens)
        self.callbacks.on_round(event)

    def result(self, end: Finished) -> Result:
        """Return the result of a request that has finished."""
        limits, count = self.request.limits, len(self.output)
        parameters = self.parameters or GenerationParams(max_new_tokens=limits.max_new_tokens)
        stopped = self.text.stopped or (count > 0 and self.output[-1] in limits.stop_ids)
        reason = finish_reason(count, stopped, limits.max_new_tokens, parameters.max_new_tokens)
        sampling = self.request.sampling
        return Result(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=end.reused,
            token_ids=self.output,
            logprobs=None if sampling.logprobs is None else self.logprobs,
            prompt_logprobs=None if sampling.prompt_logprobs is None else self.prompt_logprobs,
            text=self.text.finish(self.decode(self.output)),
            finish_reason="cancelled" if end.reason == "cancelled" else reason,
            executor=self.executor,
            drafter=self.drafter,
            parameters=parameters,
            stats=end.stats,
            times=end.times,
        )


def generate(engine: Engine, generation: Generation) -> Result:
    """Run one generation alone. Raises the exception of a failed forward or of a callback."""
    (outcome,) = generate_in_order(engine, [generation], 1)
    return successful(outcome)


class TextIterator:
    """Iterates over the text of one generation that runs alone, in parts, as they are decoded.

    `result` is the whole result after the last part. A generation whose iterator is closed or
    dropped before is cancelled. Raises the exception of a failed forward.
    """

    def __init__(self, engine: Engine, begin: Callable[[Callbacks], Generation]) -> None:
        """`begin` makes the generation with callbacks."""
        parts, self._results = deque[str](), list[Result]()
        generation = begin(Callbacks(on_text=parts.append))
        self._parts = generate_parts(engine, generation, parts, self._results)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        return next(self._parts)

    @property
    def result(self) -> Result | None:
        """The whole result, None before the end of the text."""
        return self._results[0] if self._results else None

    def close(self) -> None:
        """Cancel the generation unless it has ended."""
        self._parts.close()


def generate_parts(
    engine: Engine, generation: Generation, parts: deque[str], results: list[Result]
) -> Generator[str, None, None]:
    """Run one generation alone, and yield the `parts` that its callback has added after each step.
    Adds its result to `results`."""
    check_idle(engine)
    pending = PendingRequests(engine)
    number = pending.add(generation)
    try:
        while len(pending):
            for event in engine.step():
                outcome = pending.take(event)
            while parts:
                yield parts.popleft()
    except GeneratorExit:
        engine.cancel(number)
        engine.step()
        raise
    except BaseException:
        engine.abandon()
        raise
    assert outcome is not None, "the last event has one"
    results.append(successful(outcome))


def successful(outcome: Result | Failed) -> Result:
    """Return a result. Raises the exception of a failed forward or of a callback."""
    if isinstance(outcome, Failed):
        raise outcome.cause
    return outcome


def check_idle(engine: Engine) -> None:
    """Raise SettingError while others run an engine, whose events they would miss."""
    if engine.has_thread:
        raise SettingError("an AsyncRunner runs this artifact: use its methods, or close it")
    if engine.busy:
        raise SettingError(
            "another generation has not ended: read it to its end or close() it; AsyncRunner runs "
            "several in parallel"
        )


def generate_in_order(
    engine: Engine, generations: Iterable[Generation | Failed], batch_size: int
) -> Iterator[Result | Failed]:
    """Run generations, `batch_size` of them at a time. Yields their outcomes in the order of the
    generations, and those that had failed before in their places."""
    check_idle(engine)
    coming, pending = iter(generations), PendingRequests(engine)
    order, done = deque[RequestId | Failed](), dict[RequestId, Result | Failed]()
    try:
        while True:
            while len(pending) < batch_size and (item := next(coming, None)) is not None:
                order.append(item if isinstance(item, Failed) else pending.add(item))
            while order and (isinstance(order[0], Failed) or order[0] in done):
                first = order.popleft()
                yield first if isinstance(first, Failed) else done.pop(first)
            if not (order or len(pending)):
                return
            for event in engine.step():
                if (outcome := pending.take(event)) is not None:
                    done[event.request] = outcome
    except BaseException:
        engine.abandon()
        raise


class PendingRequests:
    """Generations that the engine has and that have not ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._generations = dict[RequestId, Generation]()
        self._failed = dict[RequestId, Failed]()
        """Generations whose callbacks raised; their last events are still to come."""

    def __len__(self) -> int:
        return len(self._generations)

    def add(self, generation: Generation) -> RequestId:
        """Give a generation's request to the engine."""
        number = self._engine.add(generation.request)
        self._generations[number] = generation
        return number

    def take(self, event: Event) -> Result | Failed | None:
        """Pass an event to its generation. Returns the outcome after the last one, else None.

        A callback that raises ends its own generation alone.
        """
        number, outcome = event.request, None
        if number not in self._failed:
            try:
                outcome = self._generations[number].take(event)
            except BaseException as error:
                self._failed[number] = Failed.of(number, error)
                self._engine.cancel(number)
        if isinstance(event, Scored | Tokens):
            return None
        del self._generations[number]
        return outcome or self._failed.pop(number)
