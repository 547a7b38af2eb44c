"""Many texts at once over one artifact, each as if it were alone."""

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
