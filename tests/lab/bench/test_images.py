"""`eagle-bench --part images`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_aot.lab.bench.images import main


@pytest.mark.artifact
def test_images_and_prompts_are_timed(picture_artifact: Path, batch_artifact: Path) -> None:
    chosen = ["--images", "1,3", "--repeats", "1"]
    done = CliRunner().invoke(main, [str(picture_artifact), *chosen, "--json"])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    (encoded,) = results["encoded"]
    assert encoded["rows"] == 70 and encoded["seconds"] > encoded["floor"] > 0
    assert [(one["images"], one["tokens"]) for one in results["prompts"]] == [(1, 106), (3, 238)]
    shown = CliRunner().invoke(main, [str(picture_artifact), *chosen])
    assert shown.exit_code == 0 and "times the floor" in shown.stdout
    refused = CliRunner().invoke(main, [str(picture_artifact), "--images", "100"])
    assert refused.exit_code == 1
    text = CliRunner().invoke(main, [str(batch_artifact)])
    assert text.exit_code == 1 and "takes text alone" in text.output
