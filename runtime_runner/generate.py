"""Users of the engine: one text by itself, or many in their order."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.request import (
    Event,
    Failed,
    RequestId,
    Scored,
    Tokens,
    reason,
)
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
    engine: Engine, generations: Iterable[Generation | Failed], at_once: int
) -> Iterator[Result | Failed]:
    """Serve so many side by side. Yields what came of each in the order that they were given, and
    in their turn those that had failed before."""
    coming, served = iter(generations), Served(engine)
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


class Served:
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
    run = PromptRun(round_.target, round_.drafter, prompt, where, sampler=round_.running.sampler)
    while run.left:
        bonus = run.run_chunk()
        stats.prefill_chunks += 1
    round_.running.place(bonus, len(prompt), index)
    return int(bonus)
