"""One generation on its way from the arguments of `Runner.generate` to a `Result`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from eagle_aot.runtime_runner.engine.request import (
    Event,
    Failed,
    Finished,
    Request,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.parameters import Parameters
from eagle_aot.runtime_runner.results.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.results.result import Result, finish_reason
from eagle_aot.runtime_runner.text.stream import NoStream


@dataclass(frozen=True, slots=True)
class Watch:
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
    parameters: Parameters | None = None
    text: NoStream = field(default_factory=NoStream)
    prompt_text: NoStream = field(default_factory=NoStream)
    decode: Callable[[list[int]], str | None] = lambda ids: None
    watch: Watch = Watch()
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
        asked = self.parameters or Parameters(max_new_tokens=limits.room)
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
