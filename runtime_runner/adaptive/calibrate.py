"""Measuring what rounds cost, before any text."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.round_costs import RoundCosts
from eagle_aot.runtime_runner.rounds.acceptance import committed
from eagle_aot.runtime_runner.rounds.round import Round
from eagle_aot.runtime_runner.rounds.step import chain_rows

SECONDS = 4.0  # to measure for
FEWEST, MOST = 3, 50  # samples of each
WARM = 3  # calls before each sample: other ones leave other data in the host's caches
LONG = 24  # plain rounds before a sample, which go on getting faster

Sample = tuple[Callable[[], object], Callable[[], object]]
"""What comes before, and what is measured."""


class Trial:
    """Rounds behind a prefill, of a text that is not there: time does not depend on what the caches
    hold. What they write is overwritten."""

    def __init__(self, rounds: Sequence[Round], backlog: Backlog) -> None:
        self.rounds, self.backlog = rounds, backlog
        self._bonus = torch.zeros(1, 1, dtype=torch.int64, device=rounds[0].device)

    def play(self, chain_len: int, position: int, count: int = 1) -> None:
        """The same round, over and over at the same place."""
        for _ in range(count):
            self.backlog.clear()
            self.rounds[chain_len].running.place(self._bonus, position)
            self.rounds[chain_len].play().tolist()

    def round(self, chain_len: int, position: int) -> Sample:
        """One among others of its length."""
        warm = WARM if chain_len else LONG
        return (
            lambda: self.play(chain_len, position, warm),
            lambda: self.play(chain_len, position),
        )

    def look(self, position: int, rows: int) -> Sample:
        """The head's at `rows` tokens, behind plain rounds, as it always is."""

        def prepare() -> None:
            self.play(0, position, WARM)
            self._keep(position, rows)

        return prepare, lambda: self.backlog.catch_up(position, [0] * rows)

    def _keep(self, position: int, rows: int) -> None:
        target, running = self.rounds[0].target, self.rounds[0].running
        running.place(self._bonus, position)
        step = chain_rows(self._bonus, running.position, running.sequences, target.tail)
        features = target.verify(step, running.moves).features
        path = committed(self._bonus, running.position, running.sequences)
        self.backlog.clear()
        for _ in range(rows):
            self.backlog.observe(path, features)


def measure_costs(
    rounds: Sequence[Round], backlog: Backlog, positions: tuple[int, int]
) -> RoundCosts:
    """Of all rounds at two positions, and of catching up on one token and on all that are kept."""
    trial = Trial(rounds, backlog)
    samples = [trial.round(k, place) for place in positions for k in range(len(rounds))]
    samples += [trial.look(positions[0], rows) for rows in (1, backlog.capacity)]
    *played, one, many = medians(samples)
    return RoundCosts(
        positions=positions,
        rounds=tuple(zip(played[: len(rounds)], played[len(rounds) :], strict=True)),
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
