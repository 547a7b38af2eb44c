"""How long rounds take on this device: measured before any request, corrected by each that runs."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.shape import PLAIN, Shape

BUDGET_SECONDS = 4.0  # for all samples of a measurement
MIN_SAMPLES = 3  # samples of each round
WARM_SECONDS = 0.02  # of a round before its sample: other rounds leave other data in the caches
WEIGHT = 4  # rounds that the measurement counts as
MEMORY = 32  # rounds of a shape, after which one counts 1 / e
FIRST_ROUNDS = 3  # of a shape that was not measured, before its time is used
LOAD_SHARE = 0.05  # of the difference that a round shows, attributed to the device's load
OUTLIER = 0.3  # what counts at most of a difference between logarithms of seconds
SETTLED_ROUNDS = 8  # plain rounds, after which more are seldom needed
SHORT_INTERVAL, LONG_INTERVAL = 64, 512  # rounds of one kind, after which the other kind is due
LOAD_CHANGE = 0.05  # of the logarithm of the load, after which plain rounds are due often


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCosts:
    """Median seconds of rounds of one request and of catching up.

    `rounds` are those of each shape at `positions[0]` and at `positions[1]` of the context.
    `catch_up` are those of a drafter's forward over 1 row and over `catch_up_rows` rows.
    """

    positions: tuple[int, int]
    rounds: Mapping[Shape, tuple[float, float]]
    catch_up_rows: int
    catch_up: tuple[float, float]

    def seconds(self, shape: Shape, position: int) -> float:
        """Return a round's seconds, interpolated between the two positions."""
        first, last = self.positions
        share = min(max((position - first) / max(last - first, 1), 0.0), 1.0)
        near, far = self.rounds[shape]
        return near + (far - near) * share

    def catch_up_seconds(self, rows: int) -> float:
        """Return the seconds of a drafter's forward over so many rows."""
        first, last = self.catch_up
        return first + (last - first) * (rows - 1) / max(self.catch_up_rows - 1, 1)


@dataclass(slots=True)
class Estimate:
    """The logarithm of a round's seconds without the device's load, in relation to the measured
    seconds if there are any."""

    log: float
    is_measured: bool
    rounds: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the estimate can be used."""
        return self.is_measured or self.rounds >= FIRST_ROUNDS

    def add(self, log: float, rounds: int) -> None:
        """Add the mean of some rounds. The first rounds of a shape may include one-time work:
        until they are known, the fastest one counts."""
        if self.is_known:
            self.rounds = min(self.rounds + rounds, MEMORY)
            self.log += clipped(log - self.log) * rounds / (self.rounds + WEIGHT)
        else:
            self.rounds += rounds
            self.log = min(self.log, log)


class CostTable:
    """Seconds of rounds by batch size and shape, as they are now.

    Rounds of one request start from what was `measured`. Shapes that have not run change as those
    with as many drafts did: tokens of a text take other experts than those of a measurement, the
    more of them the more drafts. Rounds of a batch are unknown until they have run. The device's
    load changes all rounds alike: it is estimated apart, so that a slower device does not make the
    shapes that are in use look slow.
    """

    def __init__(self, measured: MeasuredCosts | None = None) -> None:
        self.restart(measured)

    def restart(self, measured: MeasuredCosts | None) -> None:
        """Start from a measurement."""
        self.measured = measured
        self._estimates: dict[tuple[int, Shape], Estimate] = {}
        self._load = self._load_at_plain = 0.0
        self._last: tuple[int, Shape] | None = None
        self._streak = 0  # rounds with drafts since the last plain one, or negative, plain ones

    def seconds(
        self, shapes: Sequence[Shape], position: int = 0, batch_size: int = 1
    ) -> dict[Shape, float]:
        """Return the seconds of a round of each shape, without those that are unknown.

        A shape is assumed to take as long as the largest smaller one that is known, so that it is
        tried when it may be the fastest.
        """
        estimates = {shape: self._seconds(shape, position, batch_size) for shape in shapes}
        seconds = {shape: t for shape, t in estimates.items() if t is not None}
        result = dict(seconds)
        for shape in shapes:
            smaller = [s for s in seconds if s.nodes <= shape.nodes and s.depth <= shape.depth]
            if shape not in seconds and smaller:
                result[shape] = seconds[max(smaller, key=lambda s: (s.nodes, s.depth))]
        return result

    def price(self, shape: Shape, position: int) -> float:
        """Return the cost of a round of one request, in plain rounds."""
        seconds = self.seconds((PLAIN, shape), position)
        return seconds[shape] / seconds[PLAIN]

    def catch_up_price(self, rows: int, position: int) -> float:
        """Return the cost of catching up on so many rows, in plain rounds."""
        assert self.measured is not None
        return self.measured.catch_up_seconds(rows) / self.seconds((PLAIN,), position)[PLAIN]

    def add(
        self, shape: Shape, seconds: Sequence[float], position: int = 0, batch_size: int = 1
    ) -> None:
        """Add consecutive rounds of a shape. The first one after other rounds is slower, and does
        not count."""
        key = batch_size, shape
        if key != self._last:
            self._last, seconds = key, seconds[1:]
        if not seconds:
            return
        rounds, reference = len(seconds), self._measured_seconds(shape, position, batch_size)
        log = math.log(statistics.fmean(seconds) / (reference or 1.0)) - self._load
        if key not in self._estimates:
            self._estimates[key] = Estimate(0.0 if reference else log, reference is not None)
        estimate = self._estimates[key]
        self._load += min(LOAD_SHARE * rounds, 0.5) * clipped(log - estimate.log)
        estimate.add(log, rounds)
        if shape.nodes:
            self._streak = max(self._streak, 0) + rounds
        else:
            self._streak = min(self._streak, 0) - rounds
            self._load_at_plain = self._load

    def wants_plain(self, batch_size: int = 1) -> bool:
        """Whether plain rounds are due, to show what they take now: seldom once some are known, as
        long as other rounds take what they took then."""
        plain = self._estimates.get((batch_size, PLAIN))
        settled = plain is not None and plain.rounds >= SETTLED_ROUNDS
        unchanged = abs(self._load - self._load_at_plain) < LOAD_CHANGE
        return self._streak >= (LONG_INTERVAL if settled and unchanged else SHORT_INTERVAL)

    def wants_drafts(self) -> bool:
        """Whether a round with drafts is due after many plain ones."""
        return self._streak <= -SHORT_INTERVAL

    def _seconds(self, shape: Shape, position: int, batch_size: int) -> float | None:
        reference = self._measured_seconds(shape, position, batch_size)
        estimate = self._estimates.get((batch_size, shape))
        if estimate is None or not estimate.is_known:
            return reference and reference * math.exp(self._expected_log(shape))
        return (reference or 1.0) * math.exp(estimate.log)

    def _expected_log(self, shape: Shape) -> float:
        """Return the logarithm by which a measured shape that has not run is likely to change: it
        grows with the drafts from that of plain rounds, between those of the shapes that have run,
        and no further."""
        known: dict[int, list[float]] = {}
        for (batch_size, other), estimate in self._estimates.items():
            if batch_size == 1 and estimate.rounds >= FIRST_ROUNDS:
                known.setdefault(other.nodes, []).append(estimate.log)
        logs = {0: 0.0} | {nodes: statistics.fmean(values) for nodes, values in known.items()}
        fewer = max(nodes for nodes in logs if nodes <= shape.nodes)
        more = min((nodes for nodes in logs if nodes >= shape.nodes), default=fewer)
        share = (shape.nodes - fewer) / max(more - fewer, 1)
        return logs[fewer] + (logs[more] - logs[fewer]) * share

    def _measured_seconds(self, shape: Shape, position: int, batch_size: int) -> float | None:
        if batch_size > 1 or self.measured is None or shape not in self.measured.rounds:
            return None
        return self.measured.seconds(shape, position)


def clipped(difference: float) -> float:
    """Limit the weight of a single slow round."""
    return min(max(difference, -OUTLIER), OUTLIER)


def measure(rounds: Iterable[Round], backlog: Backlog, positions: tuple[int, int]) -> MeasuredCosts:
    """Measure rounds of each shape, a plain one among them, and catching up on one row and on as
    many as the backlog holds. The rounds overwrite the caches."""
    trial = Trial(rounds, backlog)
    near = {shape: timed(*trial.round(shape, positions[0])) for shape in trial.rounds}
    # A tree that is slower than plain decoding with all drafts accepted is measured once.
    slow = {s for s, t in near.items() if not s.is_chain and t > (s.depth + 1) * near[PLAIN]}
    shapes = [shape for shape in near if shape not in slow]
    samples = [trial.round(shape, position) for position in positions for shape in shapes]
    samples += [trial.catch_up(positions[0], rows) for rows in (1, backlog.capacity)]
    *seconds, first_row, all_rows = medians(samples)
    pairs = zip(shapes, seconds[: len(shapes)], seconds[len(shapes) :], strict=True)
    return MeasuredCosts(
        positions=positions,
        rounds={s: (near[s], near[s]) for s in slow} | {s: (a, b) for s, a, b in pairs},
        catch_up_rows=backlog.capacity,
        catch_up=(first_row, all_rows),
    )


Sample = tuple[Callable[[], object], Callable[[], object]]
"""What runs before, and what is timed."""


class Trial:
    """Rounds of no request: what the caches hold does not change their time."""

    def __init__(self, rounds: Iterable[Round], backlog: Backlog) -> None:
        self.rounds = {round_.shape: round_ for round_ in rounds}
        self._backlog = backlog
        self._bonus = torch.zeros_like(self.rounds[PLAIN].batch.bonus[:1])

    def round(self, shape: Shape, position: int) -> Sample:
        """Return a sample of a round after others of its shape."""
        run = partial(self._run, shape, position)

        def warm_up() -> None:
            started = time.perf_counter()
            run()
            while time.perf_counter() - started < WARM_SECONDS:
                run()

        return warm_up, run

    def catch_up(self, position: int, rows: int) -> Sample:
        """Return a sample of catching up on so many rows after a plain round."""
        catch_up = partial(self._backlog.catch_up, position, [0] * rows)
        return partial(self._run, PLAIN, position), catch_up

    def _run(self, shape: Shape, position: int) -> None:
        self._backlog.clear()
        self.rounds[shape].batch.place(self._bonus, position)
        self.rounds[shape].run().tolist()


def medians(samples: Sequence[Sample]) -> list[float]:
    """Return the median seconds of each, taken in turn so that a drift affects all alike."""
    started, sweeps = time.perf_counter(), list[list[float]]()
    while len(sweeps) < MIN_SAMPLES or time.perf_counter() - started < BUDGET_SECONDS:
        sweeps.append([timed(prepare, call) for prepare, call in samples])
    return [statistics.median(times) for times in zip(*sweeps, strict=True)]


def timed(prepare: Callable[[], object], call: Callable[[], object]) -> float:
    """Return the seconds of the call, after `prepare`."""
    prepare()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
