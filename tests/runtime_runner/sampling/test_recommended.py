"""What generation_config.json recommends."""

import json
from pathlib import Path

import pytest

from eagle_aot.common.errors import ArtifactError
from eagle_aot.runtime_runner.frontend.parameters import GenerationParams
from eagle_aot.runtime_runner.sampling.parameters import GENERATION_CONFIG, recommended


def test_parameters_are_those_of_the_file(tmp_path: Path) -> None:
    assert recommended(tmp_path) == {}
    found = {"do_sample": True, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 2]}
    (tmp_path / GENERATION_CONFIG).write_text(json.dumps(found))
    assert recommended(tmp_path) == {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
    GenerationParams(**recommended(tmp_path))
    (tmp_path / GENERATION_CONFIG).write_text(json.dumps({**found, "do_sample": False}))
    assert recommended(tmp_path) == {}
    (tmp_path / GENERATION_CONFIG).write_text("{")
    with pytest.raises(ArtifactError, match=GENERATION_CONFIG):
        recommended(tmp_path)
