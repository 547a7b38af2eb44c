"""Measuring what rounds cost, on steps that take a known time."""

import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.costs import measure
from eagle_aot.runtime_runner.adaptive.costs.measure import measure_costs, medians
from eagle_aot.runtime_runner.decode.round import BatchState, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from support.runner.toy import TAIL, RecordingDrafter, ToyTarget


class Clock:
    """Goes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def pass_ms(self, milliseconds: float) -> None:
        self.now += 1e-3 * milliseconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_medians_are_of_each_call(clock: Clock) -> None:
    rng = random.Random(0)
    prepare = lambda: clock.pass_ms(7)  # noqa: E731
    noisy = lambda: clock.pass_ms(rng.choice((4, 4, 4, 90)))  # noqa: E731
    short, longer = medians([(prepare, lambda: clock.pass_ms(2)), (prepare, noisy)])
    assert (short, longer) == pytest.approx((0.002, 0.004))


def test_rounds_and_catching_up_are_measured(clock: Clock) -> None:
    """A round takes 2 ms and 1 ms for each draft, more behind more text; catching up takes 1 ms and
    0.1 ms for each row."""

    class TimedRound(Round):
        def step(self) -> Tensor:
            clock.pass_ms((2 + self.shape.nodes) * (1 + int(self.running.position) / 100))
            return torch.zeros(1, self.chain_len + 2, dtype=torch.int64)

    class TimedBacklog(Backlog):
        def catch_up(self, first: int, tokens: Sequence[int]) -> list[bool]:
            clock.pass_ms(1 + 0.1 * len(tokens))
            return [False] * len(tokens)

    target, drafter = ToyTarget(0, 16, 9), RecordingDrafter([], [True])
    target.slots[0] = dict.fromkeys(range(101), 0)
    running = BatchState([0], TAIL, "cpu")
    backlog = TimedBacklog(drafter, 40, running)
    chains, trees = [Shape.chain(k) for k in range(4)], [Shape(2, 2, 3), Shape(3, 2, 7)]
    rounds = [TimedRound(target, drafter, shape, running) for shape in (*chains, *trees)]
    costs = measure_costs(rounds, backlog, (0, 100))
    assert [costs.price(chain, 50) for chain in chains] == pytest.approx([1, 1.5, 2, 2.5])
    assert costs.seconds(chains[1], 100) == pytest.approx(0.006)
    assert costs.price_of_catching_up(40, 0) == pytest.approx(2.5)
    assert costs.price(trees[0], 50) == pytest.approx(2.5)
    assert trees[1] not in costs.rounds, "4.5 plain rounds for 4 tokens at most"
