"""Measuring what rounds cost, before any text."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.costs.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN
from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import chain_rows

SECONDS = 4.0  # to measure for
FEWEST, MOST = 3, 50  # samples of each
WARM = 3  # calls before each sample: other ones leave other data in the host's caches
WARM_TREE = 1  # of a tree's: it is long itself
LONG = 24  # plain rounds before a sample, which go on getting faster

Sample = tuple[Callable[[], object], Callable[[], object]]
"""What comes before, and what is measured."""


class Trial:
    """Rounds behind a prefill, of a text that is not there: time does not depend on what the caches
    hold. What they write is overwritten."""

    def __init__(self, rounds: Iterable[Round], backlog: Backlog) -> None:
        self.rounds = {round_.shape: round_ for round_ in rounds}
        self.backlog = backlog
        self._bonus = torch.zeros(1, 1, dtype=torch.int64, device=self.rounds[PLAIN].device)

    def play(self, shape: Shape, position: int, count: int = 1) -> None:
        """The same round, over and over at the same place."""
        for _ in range(count):
            self.backlog.clear()
            self.rounds[shape].running.place(self._bonus, position)
            self.rounds[shape].play().tolist()

    def round(self, shape: Shape, position: int) -> Sample:
        """One among others of its shape."""
        warm = LONG if not shape.nodes else WARM if shape.is_chain else WARM_TREE
        return (
            lambda: self.play(shape, position, warm),
            lambda: self.play(shape, position),
        )

    def may_pay(self, position: int) -> list[Shape]:
        """All shapes but trees that are slower than plain rounds even where all that may be is
        accepted."""
        plain = seconds(*self.round(PLAIN, position))
        return [
            shape
            for shape in self.rounds
            if shape.is_chain or seconds(*self.round(shape, position)) < (shape.depth + 1) * plain
        ]

    def look(self, position: int, rows: int) -> Sample:
        """The head's at `rows` tokens, behind plain rounds, as it always is."""

        def prepare() -> None:
            self.play(PLAIN, position, WARM)
            self._keep(position, rows)

        return prepare, lambda: self.backlog.catch_up(position, [0] * rows)

    def _keep(self, position: int, rows: int) -> None:
        target, running = self.rounds[PLAIN].target, self.rounds[PLAIN].running
        running.place(self._bonus, position)
        step = chain_rows(self._bonus, running.position, running.sequences, target.tail)
        features = target.verify(step, running.moves).features
        path = committed(self._bonus, running.position, running.sequences)
        self.backlog.clear()
        for _ in range(rows):
            self.backlog.observe(path, features)


def plain_seconds(plain: Round, backlog: Backlog, position: int) -> float:
    """About what a round without drafts takes."""
    return seconds(*Trial([plain], backlog).round(PLAIN, position))


def measure_costs(
    rounds: Iterable[Round], backlog: Backlog, positions: tuple[int, int]
) -> RoundCosts:
    """Of plain rounds, chains, and trees that may pay, at two positions, and of catching up on one
    token and on all that are kept."""
    trial = Trial(rounds, backlog)
    shapes = trial.may_pay(positions[0])
    samples = [trial.round(shape, place) for place in positions for shape in shapes]
    samples += [trial.look(positions[0], rows) for rows in (1, backlog.capacity)]
    *played, one, many = medians(samples)
    pairs = zip(played[: len(shapes)], played[len(shapes) :], strict=True)
    return RoundCosts(
        positions=positions,
        rounds=dict(zip(shapes, pairs, strict=True)),
        rows=backlog.capacity,
        catch_up=(one, many),
    )


def medians(samples: Sequence[Sample]) -> list[float]:
    """Seconds of each, taken in turn, so that a drift meets all of them."""
    started = time.perf_counter()
    sweeps: list[list[float]] = []
    while len(sweeps) < FEWEST or (len(sweeps) < MOST and time.perf_counter() - started < SECONDS):
        sweeps.append([seconds(prepare, call) for prepare, call in samples])
    return [statistics.median(times) for times in zip(*sweeps, strict=True)]


def seconds(prepare: Callable[[], object], call: Callable[[], object]) -> float:
    """Of the call alone, by the host's clock."""
    prepare()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
