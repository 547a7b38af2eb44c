"""An engine that answers blocks of prompts."""

import json
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner.parameters import Parameters
from eagle_aot.runtime_runner.serve.on_ray.machine import open_artifact


class Predictor:
    """As Ray Data runs one in a process of its own. `options` are those of `Runner.generate`."""

    def __init__(self, artifact: Path, key: str, options: dict[str, Any]) -> None:
        """`key` is as in `Replicas`."""
        self._runner, self._options = open_artifact(artifact, key), options

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """`prompt` of each row is JSON, as are the answers; where one cannot be served, why."""
        prompts = [json.loads(prompt) for prompt in rows["prompt"]]
        refusals = [self._refusal(prompt) for prompt in prompts]
        served = [one for one, why in zip(prompts, refusals, strict=True) if why is None]
        found = self._runner.generate_many(served, **self._options)
        told = [{"error": why} if why else next(found).to_json() for why in refusals]
        return {"answer": [json.dumps(one) for one in told]}

    def _refusal(self, prompt: Any) -> str | None:
        try:
            self._runner.request(prompt, Parameters(**self._options))
        except EagleError as error:
            return str(error)
        return None
