"""What is reported about a checkpoint's matrices before reading, compared with what is read."""

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from torch import nn

from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.family import TINY_DIR
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.stored_matrix import DENSE, INT4, count_by_format, stored_matrices
from support.files.gguf import GgufModel
from support.gemma_oracle import random_gemma, save_text_layout
from support.pre_norm_oracle import random_pre_norm, save


def gguf(directory: Path) -> Path:
    """Write a Qwen3 checkpoint with another format in each kind of linear."""
    model = random_pre_norm(
        "qwen3", hidden_size=256, intermediate_size=256, head_dim=64, tie_word_embeddings=False
    )
    save(model, directory)
    kinds = {"q_proj": Type.Q4_0, "k_proj": Type.Q4_1, "v_proj": Type.Q8_0, "o_proj": Type.Q5_1}
    kinds |= {"lm_head": Type.Q4_0, "embed_tokens": Type.Q4_0}
    file = GgufModel(directory / "model.gguf", "qwen3", layers=4)
    for name, weight in load_file(directory / "model.safetensors").items():
        kind = next((kind for leaf, kind in kinds.items() if leaf in name), Type.F32)
        file.add(name, weight, kind)
    file.close()
    (directory / "model.safetensors").unlink()
    return directory


def pickled(directory: Path) -> Path:
    save(random_pre_norm("llama"), directory)
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    return directory


MAKERS = {
    "gguf": gguf,
    "pickled": pickled,
    "safetensors": lambda d: save_text_layout(random_gemma(), d),
    "compressed-tensors": lambda d: TINY_DIR / "target",
}


@pytest.mark.parametrize("name", MAKERS)
def test_linears_are_loaded_as_reported(tmp_path: Path, name: str) -> None:
    directory = MAKERS[name](tmp_path)
    target = load_target(directory, 32)
    assert isinstance(target, nn.Module)
    loaded = {
        f"{name}.weight": INT4 if isinstance(module, Int4Linear) else DENSE
        for name, module in target.named_modules()
        if isinstance(module, nn.Linear | Int4Linear)
    }
    matrices = stored_matrices(Checkpoint(directory))
    tables = {matrix.name for matrix in matrices if not matrix.is_linear}
    reported = {matrix.name: matrix.loaded_as for matrix in matrices}
    assert reported.pop("embed_tokens.weight") == DENSE and "embed_tokens.weight" in tables
    assert reported == loaded


def test_reported_sizes_are_those_of_the_file(tmp_path: Path) -> None:
    matrices = {matrix.name: matrix for matrix in stored_matrices(Checkpoint(gguf(tmp_path)))}
    value = matrices["layers.0.self_attn.v_proj.weight"]
    assert (value.file_format, value.loaded_as, value.elements) == ("Q8_0", DENSE, 128 * 256)
    assert value.bytes == value.elements // 32 * 34 and value.is_quantised
    up = matrices["layers.0.mlp.up_proj.weight"]
    assert (up.file_format, up.bytes) == ("F32", 4 * up.elements) and not up.is_quantised
    assert count_by_format(m for m in matrices.values() if m.is_linear) == {
        "int4": 8,
        "int8": 0,
        "dense": 20,
    }


def test_the_size_of_a_linear_includes_all_its_tensors() -> None:
    matrices = stored_matrices(Checkpoint(TINY_DIR / "target"))
    (up,) = (m for m in matrices if m.name == "layers.0.mlp.up_proj.weight")
    assert (up.file_format, up.loaded_as, up.elements) == ("compressed-tensors", INT4, 1024 * 256)
    assert up.elements // 2 < up.bytes < up.elements
