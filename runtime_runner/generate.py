"""One text at a time."""

from collections.abc import Callable, Sequence

from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.prompt_run import PromptRun
from eagle_aot.runtime_runner.engine.request import Failed, Finished, Request
from eagle_aot.runtime_runner.round import Round
from eagle_aot.runtime_runner.stats import Stats


def generate(
    engine: Engine, request: Request, on_tokens: Callable[[list[int]], None]
) -> tuple[list[int], Finished]:
    """Serve a request that has the engine for itself. Returns its tokens, and how it ended.

    Raises what a forward that fails raises.
    """
    number, output = engine.add(request), list[int]()
    try:
        while True:
            for event in engine.step():
                assert event.request == number, "somebody else's"
                if isinstance(event, Finished):
                    return output, event
                if isinstance(event, Failed):
                    raise event.cause
                output += event.tokens
                on_tokens(event.tokens)
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
