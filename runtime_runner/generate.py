"""Users of the engine: one text by itself, or many in their order."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.request import Event, Failed, RequestId, Tokens, reason
from eagle_aot.runtime_runner.generation import Generation
from eagle_aot.runtime_runner.prompts.run import PromptRun
from eagle_aot.runtime_runner.results.result import Result
from eagle_aot.runtime_runner.results.stats import Stats
from eagle_aot.runtime_runner.rounds.round import Round


def generate(engine: Engine, generation: Generation) -> Result:
    """Serve one that has the engine for itself. Raises what a forward that fails raises, or a
    callback."""
    (answer,) = generate_in_order(engine, [generation], 1)
    if isinstance(answer, Failed):
        raise answer.cause
    return answer


def generate_in_order(
    engine: Engine, generations: Iterable[Generation], at_once: int
) -> Iterator[Result | Failed]:
    """Serve so many side by side. Yields what came of each in the order that they were given."""
    coming, served = iter(generations), Served(engine)
    try:
        while True:
            while len(served) < at_once and (generation := next(coming, None)) is not None:
                served.add(generation)
            if not served.order:
                return
            for event in engine.step():
                served.take(event)
            yield from served.next_in_order()
    except BaseException:
        engine.abandon()
        raise


class Served:
    """Generations between their first and their last event, and answers whose turn has not come."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.order = deque[RequestId]()
        self._going_on = dict[RequestId, Generation]()
        self._broken = dict[RequestId, Failed]()
        """By callbacks; their ends are still to come."""
        self._done = dict[RequestId, Result | Failed]()

    def __len__(self) -> int:
        """How many go on."""
        return len(self._going_on)

    def add(self, generation: Generation) -> None:
        """Behind the others."""
        self.order.append(self._engine.add(generation.request))
        self._going_on[self.order[-1]] = generation

    def take(self, event: Event) -> None:
        """Show one its event. What its callbacks raise ends this one alone."""
        number, answer = event.request, None
        if number not in self._broken:
            try:
                answer = self._going_on[number].take(event)
            except Exception as error:
                self._broken[number] = Failed(number, reason(error), error)
                self._engine.cancel(number)
        if not isinstance(event, Tokens):
            del self._going_on[number]
            self._done[number] = answer or self._broken.pop(number)

    def next_in_order(self) -> Iterator[Result | Failed]:
        """The answers that nobody before them is missing for."""
        while self.order and self.order[0] in self._done:
            yield self._done.pop(self.order.popleft())


def prefill(round_: Round, prompt: Sequence[int], stats: Stats, index: int = 0) -> int:
    """Run the prompt of the sequence at `index`, ready the round for it, and return the first new
    token."""
    where = round_.running.sequences[index : index + 1]
    run = PromptRun(round_.target, round_.drafter, prompt, where, sampler=round_.running.sampler)
    while run.left:
        bonus = run.run_chunk()
        stats.prefill_chunks += 1
    round_.running.place(bonus, len(prompt), index)
    return int(bonus)
