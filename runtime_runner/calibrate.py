"""Measuring what rounds cost, before any text."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from eagle_aot.runtime_runner.backlog import Backlog
from eagle_aot.runtime_runner.round import Round
from eagle_aot.runtime_runner.round_costs import RoundCosts

SECONDS = 4.0  # to measure for
MOST = 50  # samples of each
WARM = 3  # calls before each sample


def measure_costs(
    rounds: Sequence[Round], backlog: Backlog, positions: tuple[int, int]
) -> RoundCosts:
    """Of rounds behind a prefill, at two positions of a text that is not there: time does not
    depend on what the caches hold. What it writes to them is overwritten."""
    device = rounds[0].device
    bonus = torch.zeros(1, 1, dtype=torch.int64, device=device)

    def play(round_: Round, position: int) -> None:
        backlog.clear()
        round_.begin(bonus, position)
        round_.play().tolist()

    plain, *drafting = rounds
    # Plain rounds beside all others, because every price is in plain rounds.
    pairs = [(plain, other) for other in drafting]
    plays = [partial(play, r, place) for place in positions for pair in pairs for r in pair]
    looks = [partial(backlog.catch_up, positions[0], rows) for rows in (1, backlog.capacity)]
    *played, one, many = medians([*plays, *looks])
    half = len(played) // 2
    near, far = (
        (statistics.median(times[::2]), *times[1::2]) for times in (played[:half], played[half:])
    )
    return RoundCosts(
        positions=positions,
        rounds=tuple(zip(near, far, strict=True)),
        rows=backlog.capacity,
        catch_up=(one, many),
    )


def medians(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each call, which are made in turn, so that a drift meets all of them."""
    sweeps = [[seconds(call) for call in calls]]
    count = min(MOST, int(SECONDS / sum(sweeps[0])))
    sweeps += [[seconds(call) for call in calls] for _ in range(count)]
    return [statistics.median(times) for times in zip(*sweeps, strict=True)]


def seconds(call: Callable[[], object]) -> float:
    """Of the host's clock, in a run of such calls: other ones leave other data in its caches."""
    for _ in range(WARM):
        call()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
