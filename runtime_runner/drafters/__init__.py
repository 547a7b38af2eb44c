"""What proposes drafts, one file a kind."""

from pathlib import Path

from eagle_aot.artifact import DRAFT_IDS, Constants
from eagle_aot.runtime_runner.adaptive.backlog import LateDrafter
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.executors import Executor


def open_drafter(directory: Path, executor: Executor, constants: Constants) -> LateDrafter:
    """The drafter of an artifact."""
    path = directory / DRAFT_IDS
    target_ids = None
    if path.is_file():
        from safetensors.torch import load_file

        target_ids = load_file(path, device=str(executor.device))["target_ids"]
    return Eagle3Drafter(executor, constants, target_ids)
