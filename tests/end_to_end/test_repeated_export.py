"""An export that is repeated gives the same bits."""

import json
from pathlib import Path

from click.testing import CliRunner

from eagle_aot.artifact import Manifest
from eagle_aot.export.cli import main


def test_a_repeated_export_is_the_same_bit_for_bit(
    random_artifact: Path, random_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    target_dir, head_dir = random_pair
    arguments = [
        *("--reproduce", str(random_artifact / "manifest.json"), "--json"),
        *("--target-dir", str(target_dir), "--draft-dir", str(head_dir)),
        *("--output-dir", str(tmp_path / "again")),
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["identical"] and found["decisions"] == found["environment"] == {}
    for name in Manifest.read(random_artifact).files:
        assert (tmp_path / "again" / name).read_bytes() == (random_artifact / name).read_bytes()
    # Nothing in an artifact says where it was made, or of what.
    text = (random_artifact / "manifest.json").read_text()
    assert str(target_dir.parent) not in text and str(Path.home()) not in text
