"""An engine that answers blocks of prompts."""

import json
from pathlib import Path
from typing import Any

from eagle_aot.runtime_runner.serve.on_ray.machine import open_artifact


class Predictor:
    """As Ray Data runs one in a process of its own. `options` are those of `Runner.generate`."""

    def __init__(self, artifact: Path, key: str, options: dict[str, Any]) -> None:
        """`key` is as in `Replicas`."""
        self._runner, self._options = open_artifact(artifact, key), options

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """`prompt` of each row is JSON, as are the answers; where one cannot be served, why."""
        prompts = [json.loads(prompt) for prompt in rows["prompt"]]
        found = self._runner.generate_many(prompts, keep_going=True, **self._options)
        return {"answer": [json.dumps(answer.to_json()) for answer in found]}
