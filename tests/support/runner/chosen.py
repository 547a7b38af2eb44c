"""Requests to the engine, and schedules of their rounds."""

from collections.abc import Sequence
from typing import Literal

import pytest

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs import CostTable, MeasuredCosts
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.adaptive.shapes import CHAINS, PLAIN, TREES
from eagle_aot.runtime_runner.decode.shape import ChainLen, Shape
from eagle_aot.runtime_runner.engine import Limits, Request
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.schedule import BatchSchedule
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams


def schedule_over(rounds: Rounds, price: float = 1.0) -> BatchSchedule:
    """Make a schedule of every shape; rounds with drafts cost `price` plain rounds for one
    request."""
    chooser = Chooser(CostTable())

    def alone(trees: bool) -> AdaptiveSchedule:
        backlog = Backlog(rounds.drafter, 40, rounds.running.first(1))
        shapes = [*CHAINS[1:], *(TREES if trees else ())]
        measured = MeasuredCosts(
            positions=(0, 100),
            rounds={PLAIN: (1.0, 1.0), **dict.fromkeys(shapes, (price, price))},
            catch_up_rows=40,
            catch_up=(0.1, 4.0),
        )
        chooser.costs.restart(measured)
        drafting = [rounds.of(1, shape) for shape in shapes]
        return AdaptiveSchedule([rounds.make(1, PLAIN, backlog), *drafting], backlog, chooser)

    return BatchSchedule(rounds, chooser, alone)


def fixed_schedule_over(rounds: Rounds) -> BatchSchedule:
    """Make a schedule for requests without automatic drafts."""

    def unmeasured(trees: bool) -> AdaptiveSchedule:
        pytest.fail("no request has automatic drafts")

    return BatchSchedule(rounds, Chooser(CostTable()), unmeasured)


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
