"""Counting copies to the host, in a profile that is scripted."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from eagle_aot.runtime_runner.bench import host_copies as module
from eagle_aot.runtime_runner.bench.timing import Timed

PER_ROUND = ("Memcpy DtoH (Device -> Pageable)", "Memcpy DtoD (Device -> Device)", "gemm")


@pytest.mark.parametrize(("seen", "copies"), [(PER_ROUND, 1.0), (PER_ROUND[1:], None)])
def test_copies_to_the_host_are_counted_per_round(
    monkeypatch: pytest.MonkeyPatch, seen: tuple[str, ...], copies: float | None
) -> None:
    events: list[SimpleNamespace] = []

    @contextmanager
    def profile(activities: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(events=lambda: events)

    def play() -> torch.Tensor:
        events.extend(SimpleNamespace(name=name) for name in seen)
        return torch.tensor([1])

    monkeypatch.setattr(module, "profile", profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert module.host_copies(Timed(play, lambda: None, moves=True)) == copies
