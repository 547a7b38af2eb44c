"""Requests to the engine, and what chooses for a text that is alone."""

from collections.abc import Sequence
from typing import Literal

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN, TREES
from eagle_aot.runtime_runner.decode.shape import ChainLen, Shape
from eagle_aot.runtime_runner.engine import Limits, Request
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams


def alone_over(rounds: Rounds, trees: bool, price: float = 1.0) -> AdaptiveSchedule:
    """Every shape for a text that has nobody beside it, each with drafts at the same price."""
    backlog = Backlog(rounds.drafter, 40, rounds.running.first(1))
    shapes = [*map(Shape.chain, range(1, 8)), *(TREES if trees else ())]
    drafting = [rounds.of(1, shape, next_token_probs=trees) for shape in shapes]
    costs = RoundCosts(
        positions=(0, 100),
        rounds={PLAIN: (1.0, 1.0), **dict.fromkeys(shapes, (price, price))},
        rows=40,
        catch_up=(0.1, 4.0),
    )
    return AdaptiveSchedule([rounds.make(1, PLAIN, backlog), *drafting], backlog, Chooser(costs))


def request_of(
    prompt: Sequence[int],
    room: int,
    chain_len: ChainLen = 4,
    stops: frozenset[int] = frozenset(),
    reuse: bool = False,
    tree: Shape | Literal["auto"] | None = None,
    sampling: SamplingParams = GREEDY,
) -> Request:
    return Request(
        prompt=tuple(prompt),
        limits=Limits(max_new_tokens=room, stop_ids=stops),
        chain_len=chain_len,
        reuse=reuse,
        tree=tree,
        sampling=sampling,
    )
