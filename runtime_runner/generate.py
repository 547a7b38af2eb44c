"""Users of the engine: one text by itself, or many in their order."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.prompt_run import PromptRun
from eagle_aot.runtime_runner.engine.request import Failed, Finished, RequestId
from eagle_aot.runtime_runner.generation import Generation
from eagle_aot.runtime_runner.result import Result
from eagle_aot.runtime_runner.round import Round
from eagle_aot.runtime_runner.stats import Stats


def generate(engine: Engine, generation: Generation) -> Result:
    """Serve one that has the engine for itself. Raises what a forward that fails raises."""
    (answer,) = generate_in_order(engine, [generation], 1)
    if isinstance(answer, Failed):
        raise answer.cause
    return answer


def generate_in_order(
    engine: Engine, generations: Iterable[Generation], at_once: int
) -> Iterator[Result | Failed]:
    """Serve so many side by side. Yields what came of each in the order that they were given."""
    coming, served = iter(generations), dict[RequestId, Generation]()
    order, done = deque[RequestId](), dict[RequestId, Result | Failed]()
    try:
        while True:
            while len(served) < at_once and (generation := next(coming, None)) is not None:
                order.append(engine.add(generation.request))
                served[order[-1]] = generation
            if not order:
                return
            for event in engine.step():
                if isinstance(event, Finished):
                    done[event.request] = served.pop(event.request).result(event)
                elif isinstance(event, Failed):
                    done[event.request] = event
                    del served[event.request]
                else:
                    served[event.request].take(event.tokens)
            while order and order[0] in done:
                yield done.pop(order.popleft())
    except BaseException:
        engine.abandon()
        raise


def prefill(round_: Round, prompt: Sequence[int], stats: Stats, index: int = 0) -> int:
    """Run the prompt of the sequence at `index`, ready the round for it, and return the first new
    token."""
    where = round_.running.sequences[index : index + 1]
    run = PromptRun(round_.target, round_.drafter, prompt, where)
    while run.left:
        bonus = run.run_chunk()
        stats.prefill_chunks += 1
    round_.running.place(bonus, len(prompt), index)
    return int(bonus)
