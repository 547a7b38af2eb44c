"""What rounds cost: measured on a clock of the test, and corrected by rounds that take a known
time."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.adaptive import costs as module
from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.costs import CostTable, MeasuredCosts, measure, medians
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import AUTO_CHAINS, PLAIN, Shape
from support.runner.toy import TAIL, RecordingDrafter, ToyTarget

CHAIN, TREE = Shape.chain(4), Shape(4, 8, 31)
SHAPES = PLAIN, CHAIN, TREE
MEASURED = MeasuredCosts(
    positions=(10, 110),
    rounds={PLAIN: (1.0, 2.0), CHAIN: (3.0, 8.0), TREE: (6.0, 12.0)},
    catch_up_rows=5,
    catch_up=(1.0, 3.0),
)


class Clock:
    """Only passes time on request."""

    def __init__(self) -> None:
        self.now = 0.0

    def pass_ms(self, milliseconds: float) -> None:
        self.now += 1e-3 * milliseconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_medians_are_of_each_call(clock: Clock) -> None:
    rng = random.Random(0)
    prepare = lambda: clock.pass_ms(7)  # noqa: E731
    noisy = lambda: clock.pass_ms(rng.choice((4, 4, 4, 90)))  # noqa: E731
    short, longer = medians([(prepare, lambda: clock.pass_ms(2)), (prepare, noisy)])
    assert (short, longer) == pytest.approx((0.002, 0.004))


def test_rounds_and_catching_up_are_measured(clock: Clock) -> None:
    """A round takes 2 ms and 1 ms for each draft, more at a longer context; catching up takes 1 ms
    and 0.1 ms for each row."""

    class TimedRound(Round):
        def step(self) -> Tensor:
            clock.pass_ms((2 + self.shape.nodes) * (1 + int(self.batch.position) / 100))
            return torch.zeros(1, self.chain_len + 2, dtype=torch.int64)

    class TimedBacklog(Backlog):
        def catch_up(self, first: int, tokens: Sequence[int]) -> list[bool]:
            clock.pass_ms(1 + 0.1 * len(tokens))
            return [False] * len(tokens)

    target, drafter = ToyTarget(0, 16, 9), RecordingDrafter([], [True])
    running = BatchState([0], TAIL, "cpu")
    backlog = TimedBacklog(drafter, 40, running)
    chains, trees = AUTO_CHAINS[:4], [Shape(2, 2, 3), Shape(3, 2, 7)]
    rounds = [TimedRound(target, drafter, shape, running) for shape in (*chains, *trees)]
    table = CostTable(measure(rounds, backlog, (0, 100)))
    assert [table.price(chain, 50) for chain in chains] == pytest.approx([1, 1.5, 2, 2.5])
    assert table.seconds([chains[1]], 100)[chains[1]] == pytest.approx(0.006)
    assert table.catch_up_price(40, 0) == pytest.approx(2.5)
    assert table.price(trees[0], 50) == pytest.approx(2.5)
    assert table.price(trees[1], 0) == pytest.approx(4.5)


def test_prices_are_interpolated_between_positions() -> None:
    table = CostTable(MEASURED)
    assert [table.price(PLAIN, position) for position in (10, 60)] == [1, 1]
    assert [table.price(CHAIN, position) for position in (0, 60, 110)] == [3, 5.5 / 1.5, 4]
    assert [table.catch_up_price(rows, 10) for rows in (1, 3, 5)] == [1, 2, 3]


def play(
    table: CostTable,
    factors: dict[Shape, float],
    runs: int = 60,
    noise: Callable[[], float] = lambda: 1.0,
) -> None:
    """Play runs of four rounds, each shape in turn, which take so many times what was measured. The
    first one of each takes longer."""
    for _ in range(runs):
        for shape, factor in factors.items():
            seconds = MEASURED.seconds(shape, 10) * factor
            table.add(shape, [1.3 * seconds, *(seconds * noise() for _ in range(3))], 10)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.25])
@pytest.mark.parametrize("load", [0.7, 1.0, 3.0])
def test_the_price_of_a_shape_follows_its_rounds(factor: float, load: float) -> None:
    table = CostTable(MEASURED)
    play(table, {PLAIN: load, CHAIN: load, TREE: load * factor})
    assert table.price(CHAIN, 10) == pytest.approx(3.0, rel=0.02)
    assert table.price(TREE, 10) == pytest.approx(6.0 * factor, rel=0.02)


def test_shapes_that_have_not_run_change_as_those_with_as_many_drafts() -> None:
    """As where drafts take other experts than those of the measurement."""
    short, middle, long = Shape.chain(2), Shape.chain(6), Shape.chain(15)
    rounds = dict.fromkeys((PLAIN, short, CHAIN, middle, long), (2.0, 4.0))
    table = CostTable(replace(MEASURED, rounds=rounds | {TREE: (6.0, 12.0)}))
    for _ in range(60):
        for shape, seconds in ((PLAIN, 2.0), (CHAIN, 2.0 * 1.2), (TREE, 6.0 * 1.5)):
            table.add(shape, [seconds] * 4, 10)
    assert table.price(CHAIN, 10) == pytest.approx(1.2, rel=0.02)
    assert table.price(short, 10) == pytest.approx(1.2**0.5, rel=0.02)
    assert table.price(middle, 10) == pytest.approx(1.2 * (1.5 / 1.2) ** (2 / 27), rel=0.02)
    assert table.price(Shape.chain(4), 110) == pytest.approx(1.2, rel=0.02)
    assert table.price(PLAIN, 10) == 1


def test_noise_changes_prices_little() -> None:
    table, rng = CostTable(MEASURED), random.Random(0)
    play(table, dict.fromkeys(SHAPES, 1.0), noise=lambda: rng.lognormvariate(0.0, 0.1))
    assert table.price(CHAIN, 10) == pytest.approx(3.0, rel=0.06)
    assert table.price(TREE, 10) == pytest.approx(6.0, rel=0.06)


def test_a_load_on_the_device_does_not_make_the_shape_in_use_look_slow() -> None:
    table = CostTable(MEASURED)
    play(table, dict.fromkeys(SHAPES, 1.0))
    play(table, {CHAIN: 1.5}, runs=20)
    assert table.price(CHAIN, 10) < 3.0 * 1.25


def test_a_single_slow_run_changes_little() -> None:
    table = CostTable(MEASURED)
    play(table, dict.fromkeys(SHAPES, 1.0))
    table.add(TREE, [6.0, 300.0, 300.0], 10)
    assert table.price(TREE, 10) < 6.0 * 1.05


def rounds_until_plain(table: CostTable, factor: float) -> int:
    """Return how many rounds with drafts run until plain ones are due."""
    rounds = 0
    while not table.wants_plain():
        table.add(CHAIN, [3.0 * factor] * 4, 10)
        rounds += 4
    table.add(PLAIN, [1.0] * 4, 10)
    return rounds


def test_plain_rounds_are_due_seldom_once_they_are_known_and_nothing_changes() -> None:
    table = CostTable(MEASURED)
    often = [rounds_until_plain(table, 1.0) for _ in range(3)]
    assert max(often) < 100 < rounds_until_plain(table, 1.0)
    assert rounds_until_plain(table, 1.5) < 100


def test_rounds_of_a_batch_are_unknown_until_some_have_run() -> None:
    table = CostTable(MEASURED)
    assert not table.seconds(AUTO_CHAINS, batch_size=4)
    for _ in range(4):
        assert AUTO_CHAINS[1] not in table.seconds(AUTO_CHAINS, batch_size=4)
        table.add(AUTO_CHAINS[1], [0.5], batch_size=4)
    seconds = table.seconds(AUTO_CHAINS, batch_size=4)
    assert PLAIN not in seconds
    # Larger shapes are assumed to take as long, until they have run.
    assert seconds == pytest.approx(dict.fromkeys(AUTO_CHAINS[1:], 0.5))
    for _ in range(4):
        table.add(AUTO_CHAINS[-1], [0.9], batch_size=4)
    assert table.seconds(AUTO_CHAINS, batch_size=4)[AUTO_CHAINS[-1]] == pytest.approx(0.9, rel=0.05)


def test_one_time_work_in_the_first_rounds_of_a_batch_does_not_count() -> None:
    table = CostTable(MEASURED)
    for seconds in (60.0, 9.0, 0.5, 0.5):
        table.add(PLAIN, [seconds], batch_size=4)
    assert table.seconds([PLAIN], batch_size=4)[PLAIN] == pytest.approx(0.5, rel=0.5)
