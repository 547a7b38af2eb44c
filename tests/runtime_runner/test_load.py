"""An artifact whose files change while it is opened is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_aot.artifact import PROGRAM, Constants, file_record
from eagle_aot.artifact.verified import Snapshot
from eagle_aot.common.errors import ArtifactError
from eagle_aot.common.tokenizer import TEMPLATE, VOCABULARY
from eagle_aot.runtime_runner import load
from eagle_aot.runtime_runner.frontend.prompt_reader import PromptReader
from eagle_aot.targets.family import TINY_DIR
from support.files.artifact import CONSTANTS, write_artifact


def test_a_program_that_is_swapped_while_it_is_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_artifact(tmp_path)

    def open_program(directory: Path, *arguments: Any, **options: Any) -> Any:
        (directory / "other").write_bytes(b"program")
        (directory / "other").replace(directory / PROGRAM)
        return SimpleNamespace(constants=list, device="cpu")

    monkeypatch.setattr(load, "open_program", open_program)
    monkeypatch.setattr(Constants, "from_methods", lambda published: CONSTANTS)
    monkeypatch.setattr(load, "drafter_factory", lambda *arguments: None)
    with pytest.raises(ArtifactError, match="changed while it was read: open it again"):
        load.load_artifact(tmp_path)


def test_a_tokenizer_that_is_swapped_before_its_first_use_is_refused(tmp_path: Path) -> None:
    names = [path.name for path in (TINY_DIR / "target").iterdir() if path.name.endswith(".json")]
    for name in {*names, TEMPLATE} & {VOCABULARY, TEMPLATE, "tokenizer_config.json"}:
        (tmp_path / name).write_bytes((TINY_DIR / "target" / name).read_bytes())
    files = {path.name: file_record(path) for path in tmp_path.iterdir()}
    snapshot = Snapshot(write_artifact(tmp_path, files=files), tmp_path)
    reader = PromptReader(tmp_path, None, 64, check=snapshot.check)
    other = tmp_path / "other"
    other.write_bytes((tmp_path / VOCABULARY).read_bytes())
    other.replace(tmp_path / VOCABULARY)
    with pytest.raises(ArtifactError, match="changed while it was read: open it again"):
        assert reader.tokenizer


def test_a_directory_that_is_not_there_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    for name in ("tiny-xnnpack", "other"):
        (tmp_path / name).mkdir()
        write_artifact(tmp_path / name)
    (tmp_path / "tiny-xnpak").write_text("no artifact")
    with pytest.raises(ArtifactError, match=r"directory; did you mean tiny-xnnpack\?$"):
        load.load_artifact(tmp_path / "tiny-xnpac")
    with pytest.raises(ArtifactError, match=r"no such artifact directory$"):
        load.load_artifact(tmp_path / "abc")
