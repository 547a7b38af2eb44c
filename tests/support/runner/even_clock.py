"""A clock by which all rounds take the same."""

import itertools
from types import SimpleNamespace

import pytest

from eagle_aot.runtime_runner.adaptive import schedule
from eagle_aot.runtime_runner.engine import engine

SECONDS = 1.0
"""From one look at the clock to the next."""


def set_even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """For those who measure rounds that texts run: what is chosen then depends on what drafts are
    worth, and not on what else the machine does."""
    for module in (engine, schedule):
        looks = itertools.count(SECONDS, SECONDS)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=looks.__next__))
