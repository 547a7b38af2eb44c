"""The script that times pictures in prompts."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench_images import main


@pytest.mark.artifact
def test_it_times_pictures_and_prompts(picture_artifact: Path, batch_artifact: Path) -> None:
    chosen = ["--pictures", "1,3", "--repeats", "1"]
    done = CliRunner().invoke(main, [str(picture_artifact), *chosen, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (encoded,) = found["encoded"]
    assert encoded["rows"] == 70 and encoded["seconds"] > encoded["floor"] > 0
    assert [(one["pictures"], one["tokens"]) for one in found["read"]] == [(1, 106), (3, 238)]
    shown = CliRunner().invoke(main, [str(picture_artifact), *chosen])
    assert shown.exit_code == 0 and "times the floor" in shown.stdout
    refused = CliRunner().invoke(main, [str(picture_artifact), "--pictures", "100"])
    assert refused.exit_code == 1
    text = CliRunner().invoke(main, [str(batch_artifact)])
    assert text.exit_code == 1 and "reads text alone" in text.output
