"""Engines whose forwards all count as equally long."""

import pytest

from eagle_aot.runtime_runner.engine.turns import PromptShare


@pytest.fixture(autouse=True)
def equally_long_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the order of chunks and rounds follow from the requests, not from the machine's speed."""
    add_chunk, add_round = PromptShare.add_chunk, PromptShare.add_round
    monkeypatch.setattr(PromptShare, "add_chunk", lambda share, seconds: add_chunk(share, 1.0))
    monkeypatch.setattr(PromptShare, "add_round", lambda share, seconds: add_round(share, 1.0))
