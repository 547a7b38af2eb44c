"""How an artifact generates text."""

from eagle_aot.runtime_runner.runner import Runner, load_artifact

__all__ = ["Runner", "load_artifact"]
