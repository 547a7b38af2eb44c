"""A text by itself."""

from collections.abc import Callable, Sequence

from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.schedule import OneRound
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Generation, generate


def decode(
    round_: Round,
    prompt: Sequence[int],
    limits: Limits,
    on_tokens: Callable[[list[int]], None] = lambda run: None,
) -> tuple[list[int], Stats]:
    """The output of the same round over and over."""
    tree = None if round_.shape.is_chain else round_.shape
    request = Request(prompt=tuple(prompt), limits=limits, chain_len=round_.chain_len, tree=tree)
    generation = Generation(request=request, callbacks=Callbacks(on_tokens))
    result = generate(Engine(OneRound(round_)), generation)
    return result.token_ids, result.stats
