"""The samples taken behind one context, and the figures they come to."""

from eagle_aot.runtime_runner.bench.floor import Floors
from eagle_aot.runtime_runner.bench.parts import Forward, Parts, WholeRound
from eagle_aot.runtime_runner.bench.results import AtContext, Part, Prefill, Round
from eagle_aot.runtime_runner.bench.timing import (
    Clock,
    Series,
    Timed,
    time_on_device,
    time_on_host,
    time_to_launch,
)


class RoundSeries:
    """Samples of a round by the host's clock, and where the device is another than the host, by the
    device's, and of what the host takes to launch it."""

    def __init__(self, clock: Clock, timed: Timed) -> None:
        self.wall = Series(clock, timed, time_on_host)
        self._device = self._launch = None
        if not clock.is_host:
            self._device = Series(clock, timed, time_on_device)
            # As many calls as of whole rounds, because the device runs each of them to its end.
            self._launch = Series(clock, timed, time_to_launch, self.wall.calls)

    def sample(self) -> None:
        """Take one more of each."""
        for series in (self.wall, self._device, self._launch):
            if series:
                series.sample()

    @property
    def host_ms(self) -> float | None:
        """What the round costs beyond the device's span; None where the host is the device.

        The span holds whatever launching the device waits for, so this does not show a host-bound
        round: `launch_ms` does.
        """
        return self.wall.ms - self._device.ms if self._device else None

    @property
    def launch_ms(self) -> float | None:
        """What the host takes to launch the round; None where the host is the device."""
        return self._launch.ms if self._launch else None


class Samples:
    """All parts of a round, timed in turn."""

    def __init__(self, clock: Clock, parts: Parts, prefill: Prefill) -> None:
        """Warms all parts up behind the context that `prefill` filled the caches with."""
        self._prefill = prefill
        self._context = prefill.tokens
        parts.place(self._context)
        self._forwards = [(part, Series(clock, part.timed)) for part in parts.forwards]
        self._rounds = [(round_, RoundSeries(clock, round_.timed)) for round_ in parts.rounds]

    def take(self) -> None:
        """One more sample of every part."""
        for _, forward in self._forwards:
            forward.sample()
        for _, round_ in self._rounds:
            round_.sample()

    def figures(self, floors: Floors) -> AtContext:
        """Medians of what was taken."""
        return AtContext(
            context=self._context,
            prefill=self._prefill,
            parts=tuple(self._part(*taken, floors) for taken in self._forwards),
            rounds=tuple(self._round(*taken, floors) for taken in self._rounds),
        )

    def _part(self, forward: Forward, series: Series, floors: Floors) -> Part:
        return Part(
            name=forward.name,
            rows=forward.rows,
            sequences=forward.sequences,
            ms=series.ms,
            floor=floors.forward(forward.method, forward.rows, self._context, forward.sequences),
        )

    def _round(self, round_: WholeRound, series: RoundSeries, floors: Floors) -> Round:
        return Round(
            chain_len=round_.chain_len,
            wall_ms=series.wall.ms,
            host_ms=series.host_ms,
            launch_ms=series.launch_ms,
            floor=floors.round(round_.chain_len, self._context),
        )
