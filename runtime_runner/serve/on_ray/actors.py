"""An engine in a process of Ray's, and the GPUs that it takes."""

import functools
import json
from pathlib import Path
from typing import Any

import torch

from eagle_aot.artifact import Manifest
from eagle_aot.artifact.verified import verify_once
from eagle_aot.runtime_runner.load import load_artifact
from eagle_aot.runtime_runner.runner import Runner


def open_artifact(artifact: Path, key: str, **options: Any) -> Runner:
    """Open an artifact as `load_artifact` does; on each machine one of the processes with the same
    `key` verifies it for all."""
    return load_artifact(artifact, verify=functools.partial(verify_once, key=key), **options)


def gpus_of(manifest: Manifest) -> float:
    """Return the GPUs of an engine as Ray counts them: one for an artifact for GPUs, if there are
    any."""
    return float(manifest.backend == "cuda" and torch.cuda.is_available())


class Predictor:
    """An engine that Ray Data gives blocks of prompts."""

    def __init__(
        self, artifact: Path, key: str, load: dict[str, Any], options: dict[str, Any]
    ) -> None:
        """`key` and `load` are those of `open_artifact`, `options` those of
        `Runner.generate_many`."""
        self._runner, self._options = open_artifact(artifact, key, **load), options

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """Answer the `prompt` of each row, which is JSON, with a line of JSON: the answer, or why
        there is none."""
        prompts = [json.loads(prompt) for prompt in rows["prompt"]]
        answers = self._runner.generate_many(prompts, keep_going=True, **self._options)
        return {"answer": [json.dumps(answer.to_json()) for answer in answers]}
