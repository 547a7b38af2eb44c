"""Serves many requests at once over one artifact; each gets the tokens that it would get alone."""

from eagle_aot.runtime_runner.engine.engine import Engine
from eagle_aot.runtime_runner.engine.request import (
    Event,
    Failed,
    Finished,
    Limits,
    Request,
    Scored,
    Tokens,
)

__all__ = ["Engine", "Event", "Failed", "Finished", "Limits", "Request", "Scored", "Tokens"]
