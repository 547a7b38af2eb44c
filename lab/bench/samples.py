"""Samples of the parts of a round at one context, and its copies to the host."""

import os

import torch
from torch.profiler import ProfilerActivity, profile

from eagle_aot.lab.bench.floor import Floors
from eagle_aot.lab.bench.parts import Parts, RepeatedForward, WholeRound
from eagle_aot.lab.bench.results import AtContext, Part, PrefillTime, RoundTimes
from eagle_aot.lab.bench.timing import (
    Clock,
    Series,
    Timed,
    time_on_device,
    time_on_host,
    time_to_launch,
)

TO_HOST = "Memcpy DtoH"
COUNTED = 10  # rounds
QUIET = "KINETO_LOG_LEVEL", "99"  # or the profiler reports each of its stages on stderr


class RoundSeries:
    """Samples of a round by the host's clock and, on a GPU, by the device's and until launched."""

    def __init__(self, clock: Clock, timed: Timed) -> None:
        self.wall = Series(clock, timed, time_on_host)
        self._device = self._launch = None
        if not clock.is_host:
            self._device = Series(clock, timed, time_on_device)
            # As many calls as of whole rounds, because the device runs each call to its end.
            self._launch = Series(clock, timed, time_to_launch, self.wall.calls)

    def sample(self) -> None:
        """Take one more of each."""
        for series in (self.wall, self._device, self._launch):
            if series:
                series.sample()

    @property
    def host_ms(self) -> float | None:
        """The round's time outside the device's span; None where the host is the device.

        The span includes waiting for launches, so this does not show a host-bound round:
        `launch_ms` does.
        """
        return self.wall.ms - self._device.ms if self._device else None

    @property
    def launch_ms(self) -> float | None:
        """The time to launch the round; None where the host is the device."""
        return self._launch.ms if self._launch else None


class Samples:
    """All parts of a round, timed in turn."""

    def __init__(self, clock: Clock, parts: Parts, prefill: PrefillTime) -> None:
        """Warm all parts up at the end of the context that `prefill` filled the caches with."""
        self._prefill = prefill
        self._context = prefill.tokens
        parts.place(self._context)
        self._forwards = [(part, Series(clock, part.timed)) for part in parts.forwards]
        self._rounds = [(round_, RoundSeries(clock, round_.timed)) for round_ in parts.rounds]

    def take(self) -> None:
        """Take one more sample of every part."""
        for _, forward in self._forwards:
            forward.sample()
        for _, round_ in self._rounds:
            round_.sample()

    def figures(self, floors: Floors) -> AtContext:
        """Return the medians."""
        return AtContext(
            context=self._context,
            prefill=self._prefill,
            parts=tuple(self._part(part, series, floors) for part, series in self._forwards),
            rounds=tuple(self._round(round_, series, floors) for round_, series in self._rounds),
        )

    def _part(self, forward: RepeatedForward, series: Series, floors: Floors) -> Part:
        return Part(
            name=forward.name,
            rows=forward.rows,
            sequences=forward.sequences,
            ms=series.ms,
            floor=floors.forward(forward.method, forward.rows, self._context, forward.sequences),
        )

    def _round(self, round_: WholeRound, series: RoundSeries, floors: Floors) -> RoundTimes:
        return RoundTimes(
            shape=round_.shape,
            wall_ms=series.wall.ms,
            host_ms=series.host_ms,
            launch_ms=series.launch_ms,
            floor=floors.round(round_.shape, self._context),
        )


def host_copies(timed: Timed) -> float | None:
    """Return the copies from GPU to host per call whose result is read; None where none is seen.

    The profiler slows down what comes after it: time first, then count.
    """
    os.environ.setdefault(*QUIET)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(COUNTED):
            timed.prepare()
            timed.run().tolist()
        torch.cuda.synchronize()
    copies = sum(event.name.startswith(TO_HOST) for event in profiler.events())
    return copies / COUNTED if copies else None
