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
FEWEST, MOST = 3, 50  # samples of each
WARM = 3  # calls before each sample: other ones leave other data in the host's caches
LONG = 24  # plain rounds before a sample, which go on getting faster


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

    calls: list[tuple[Callable[[], object], int]] = [
        (partial(play, round_, position), WARM if round_.chain_len else LONG)
        for position in positions
        for round_ in rounds
    ]
    for rows in (1, backlog.capacity):
        calls.append((partial(backlog.catch_up, positions[0], [0] * rows), WARM))
    *played, one, many = medians(calls)
    return RoundCosts(
        positions=positions,
        rounds=tuple(zip(played[: len(rounds)], played[len(rounds) :], strict=True)),
        rows=backlog.capacity,
        catch_up=(one, many),
    )


def medians(calls: Sequence[tuple[Callable[[], object], int]]) -> list[float]:
    """Seconds of each call behind a number of the same, which are made in turn, so that a drift
    meets all of them."""
    started = time.perf_counter()
    sweeps: list[list[float]] = []
    while len(sweeps) < FEWEST or (len(sweeps) < MOST and time.perf_counter() - started < SECONDS):
        sweeps.append([seconds(call, warm) for call, warm in calls])
    return [statistics.median(times) for times in zip(*sweeps, strict=True)]


def seconds(call: Callable[[], object], warm: int) -> float:
    """Of the host's clock."""
    for _ in range(warm):
        call()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
