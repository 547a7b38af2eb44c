"""One generation on its way from the arguments of `Runner.generate` to a `Result`."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from eagle_aot.runtime_runner.decode.prefill import Prefill
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.request import (
    Event,
    Failed,
    Finished,
    Request,
    RequestId,
    Scored,
    Tokens,
    reason,
)
from eagle_aot.runtime_runner.parameters import GenerationParams
from eagle_aot.runtime_runner.results.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.results.result import Result, finish_reason
from eagle_aot.runtime_runner.results.stats import Stats
from eagle_aot.runtime_runner.text.stream import NoStream


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Who looks on: callbacks as `Runner.generate` takes them."""

    on_tokens: Callable[[list[int]], None] = lambda run: None
    on_text: Callable[[str], None] | None = None
    cancelled: Callable[[], bool] = lambda: False
    on_round: Callable[[Tokens], None] = lambda told: None
    """Is handed what `on_tokens` is, and what it was drafted."""
    on_prompt: Callable[[Sequence[TokenLogprobs]], None] = lambda logprobs: None
    """Is handed those of the prompt's next tokens, before all others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """`text` reads the tokens that `request` is given, and may end it, `prompt_text` those of its
    prompt that are told of; `decode` gives all of the text, None without a tokenizer. `parameters`
    are what was asked for, None where that was nothing but the request. `on_round` is handed what
    `on_tokens` is, and what was drafted."""

    request: Request
    parameters: GenerationParams | None = None
    text: NoStream = field(default_factory=NoStream)
    prompt_text: NoStream = field(default_factory=NoStream)
    decode: Callable[[list[int]], str | None] = lambda ids: None
    watch: Callbacks = Callbacks()
    executor: str = ""
    drafter: str | None = None
    output: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, event: Event) -> Result | Failed | None:
        """What is next of it; returns what came of it behind the last. Callbacks are called here,
        and what they raise goes through."""
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
        for one in event.logprobs:
            self.prompt_text.ends(one.id)  # which it never does
        placed = self.prompt_text.placed(event.logprobs)
        self.prompt_logprobs.extend(placed)
        self.watch.on_prompt(placed)

    def _take_tokens(self, event: Tokens) -> None:
        if event.logprobs:
            event = replace(event, logprobs=self.text.placed(event.logprobs))
        self.output.extend(event.tokens)
        self.logprobs.extend(event.logprobs)
        self.text.show()
        self.watch.on_tokens(event.tokens)
        self.watch.on_round(event)

    def result(self, end: Finished) -> Result:
        """What came of it."""
        limits, count = self.request.limits, len(self.output)
        asked = self.parameters or GenerationParams(max_new_tokens=limits.room)
        stopped = self.text.stopped or (count > 0 and self.output[-1] in limits.stop_ids)
        reason = finish_reason(count, stopped, limits.room, asked.max_new_tokens)
        sampling = self.request.sampling
        return Result(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=end.kept,
            token_ids=self.output,
            logprobs=None if sampling.logprobs is None else self.logprobs,
            prompt_logprobs=None if sampling.prompt_logprobs is None else self.prompt_logprobs,
            text=self.text.close(self.decode(self.output)),
            finish_reason="cancelled" if end.reason == "cancelled" else reason,
            executor=self.executor,
            drafter=self.drafter,
            parameters=asked,
            stats=end.stats,
            span=end.span,
        )


def generate(engine: Engine, generation: Generation) -> Result:
    """Serve one that has the engine for itself. Raises what a forward that fails raises, or a
    callback."""
    (answer,) = generate_in_order(engine, [generation], 1)
    if isinstance(answer, Failed):
        raise answer.cause
    return answer


def generate_in_order(
    engine: Engine, generations: Iterable[Generation | Failed], at_once: int
) -> Iterator[Result | Failed]:
    """Serve so many side by side. Yields what came of each in the order that they were given, and
    in their turn those that had failed before."""
    coming, served = iter(generations), PendingRequests(engine)
    order, done = deque[RequestId | Failed](), dict[RequestId, Result | Failed]()
    try:
        while True:
            while len(served) < at_once and (one := next(coming, None)) is not None:
                order.append(one if isinstance(one, Failed) else served.add(one))
            while order and (isinstance(order[0], Failed) or order[0] in done):
                first = order.popleft()
                yield first if isinstance(first, Failed) else done.pop(first)
            if not (order or len(served)):
                return
            for event in engine.step():
                if (answer := served.take(event)) is not None:
                    done[event.request] = answer
    except BaseException:
        engine.abandon()
        raise


class PendingRequests:
    """Generations between their first and their last event."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._going_on = dict[RequestId, Generation]()
        self._broken = dict[RequestId, Failed]()
        """By callbacks; their ends are still to come."""

    def __len__(self) -> int:
        """How many go on."""
        return len(self._going_on)

    def add(self, generation: Generation) -> RequestId:
        """Queue one."""
        number = self._engine.add(generation.request)
        self._going_on[number] = generation
        return number

    def take(self, event: Event) -> Result | Failed | None:
        """Show one its event. Returns what came of it behind its last. What its callbacks raise
        ends this one alone."""
        number, answer = event.request, None
        if number not in self._broken:
            try:
                answer = self._going_on[number].take(event)
            except Exception as error:
                self._broken[number] = Failed(number, reason(error), error)
                self._engine.cancel(number)
        if isinstance(event, Scored | Tokens):
            return None
        del self._going_on[number]
        return answer or self._broken.pop(number)


def prefill(round_: Round, prompt: Sequence[int], stats: Stats, index: int = 0) -> int:
    """Run the prompt of the sequence at `index`, ready the round for it, and return the first new
    token."""
    where = round_.running.sequences[index : index + 1]
    run = Prefill(round_.target, round_.drafter, prompt, where, sampler=round_.running.sampler)
    while run.left:
        bonus = run.run_chunk()
        stats.prefill_chunks += 1
    round_.running.place(bonus, len(prompt), index)
    return int(bonus)
