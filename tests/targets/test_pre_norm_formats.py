"""Llama and Qwen3 in the formats of their public checkpoints."""

import json
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize, quantize
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from eagle_aot.targets import load_target
from support.files.gguf import GgufModel
from support.files.int4 import Tensors, awq, count_int4_linears, gptq, rounded
from support.gemma_oracle import oracle_states, random_tokens, run_in_chunks, write_config
from support.golden_cases import relative_error
from support.pre_norm_oracle import random_pre_norm, save

GEOMETRY = {"hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": False}
HEADS = {"q_proj": 4, "k_proj": 2}
LINEARS = 28


def assert_computes(directory: Path, model: PreTrainedModel, values: Tensors, linears: int) -> None:
    """Check the target in `directory` against the model with its weights replaced by `values`."""
    target = load_target(directory, 32)
    assert count_int4_linears(target) == linears
    assert not model.load_state_dict(values, strict=False).unexpected_keys
    tokens = random_tokens(30)
    logits, _ = run_in_chunks(target, tokens, [8])
    assert relative_error(logits, oracle_states(model, tokens)[0]) < 2e-5


@pytest.mark.parametrize("method", ["awq", "gptq"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_awq_and_gptq_models_match_transformers(tmp_path: Path, family: str, method: str) -> None:
    model = random_pre_norm(family, **GEOMETRY)
    save(model, tmp_path)
    tensors, values = load_file(tmp_path / "model.safetensors"), {}
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        grid = rounded(tensors.pop(name), 32)
        parts = awq(grid) if method == "awq" else gptq(grid, 1)
        tensors |= {name.removesuffix("weight") + part: t for part, t in parts.items()}
        values[name] = grid.dense
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    said = {"quant_method": method, "bits": 4, "group_size": 32}
    write_config(tmp_path, config | {"quantization_config": said})
    assert_computes(tmp_path, model, values, LINEARS)


def as_llama_cpp_orders(name: str, weight: Tensor) -> Tensor:
    """Interleave the two halves of each query or key head, like llama.cpp's converter: [N, K]."""
    heads = next((n for leaf, n in HEADS.items() if leaf in name), None)
    if heads is None:
        return weight
    halves = weight.unflatten(0, (heads, 2, -1))
    return torch.stack((halves[:, 0], halves[:, 1]), dim=2).flatten(0, 2)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_gguf_models_match_transformers(tmp_path: Path, family: str) -> None:
    model = random_pre_norm(family, **GEOMETRY)
    save(model, tmp_path)
    file, values = GgufModel(tmp_path / "model.gguf", family, layers=4), {}
    file.writer.add_head_count(HEADS["q_proj"])
    file.writer.add_head_count_kv(HEADS["k_proj"])
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        kind = Type.Q4_0 if name.endswith(("_proj.weight", "lm_head.weight")) else Type.F32
        stored = as_llama_cpp_orders(name, weight) if family == "llama" else weight
        file.add(name, stored.contiguous(), kind)
        values[name] = torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind).copy())
    file.close()
    (tmp_path / "model.safetensors").unlink()
    assert_computes(tmp_path, model, values, LINEARS + 1)
