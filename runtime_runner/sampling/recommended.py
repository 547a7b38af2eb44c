"""What a model's makers recommend for sampling from it."""

import json
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import ArtifactError

FILE = "generation_config.json"
NAMES = "temperature", "top_k", "top_p", "min_p", "repetition_penalty"


def recommended(directory: Path) -> dict[str, Any]:
    """By the names of `SamplingParams`, of the artifact in a directory; empty where there is no
    recommendation, or none to sample. Raises ArtifactError for a file that cannot be read."""
    path = directory / FILE
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{path}: not readable: export again") from error
    if not isinstance(found, dict) or not found.get("do_sample"):
        return {}
    named = {name: found[name] for name in NAMES if found.get(name) is not None}
    return {"temperature": 1.0, **named}
