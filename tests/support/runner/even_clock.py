"""A clock by which all rounds take the same time."""

import itertools
from types import SimpleNamespace

import pytest

from eagle_aot.runtime_runner.engine import engine


def set_even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each reading of the engine's clock be a second after the one before, so that the choice
    of rounds depends on what drafts are worth, and not on what else the machine does."""
    readings = itertools.count(1.0)
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=readings.__next__))
