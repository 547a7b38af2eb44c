"""What an engine takes of a machine, and finds on it."""

import functools
from pathlib import Path
from typing import Any

import torch

from eagle_aot.artifact import Manifest
from eagle_aot.artifact.verified import verify_once
from eagle_aot.runtime_runner.load import load_artifact
from eagle_aot.runtime_runner.runner import Runner


def open_artifact(artifact: Path, key: str, **options: Any) -> Runner:
    """As `load_artifact` does; one process of each machine verifies for all with this key."""
    return load_artifact(artifact, verify=functools.partial(verify_once, key=key), **options)


def gpus_of(manifest: Manifest) -> float:
    """As Ray counts them: one for an artifact of a GPU, where there are any."""
    return float(manifest.backend == "cuda" and torch.cuda.is_available())
