"""Targets with rarer forms of weights and rotary embeddings, exported for a GPU."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from eagle_aot.lab.checks.rows import RowCheck
from eagle_aot.runtime_runner import Runner, load_artifact
from support.checkpoint_edits import edit_config
from support.exports import export_program
from support.files.int4 import save_words
from support.gemma_oracle import oracle_states, random_tokens
from support.golden_cases import relative_error
from support.pre_norm_oracle import random_pre_norm, save, stacked
from support.random_pair import add_tokenizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

GEOMETRY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
TRAINED = 24  # tokens: a prompt of more than that has longrope's long factors
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + i / 8 for i in range(24)],
    "long_factor": [1.5 + i for i in range(24)],
}


def ordered_and_eight_bits(directory: Path) -> PreTrainedModel:
    """Save a Qwen3 by GPTQ: columns in the order of activations, and `down_proj` in 8 bits."""
    model = random_pre_norm("qwen3", **GEOMETRY)
    save(model, directory)
    dynamic = {"+:.*down_proj": {"bits": 8}}
    values = save_words(directory, "gptq", True, "down_proj", desc_act=True, dynamic=dynamic)
    model.load_state_dict(values, strict=False)
    return model


def ordered_experts(directory: Path) -> PreTrainedModel:
    """Save a Qwen3 with experts by GPTQ."""
    model = random_pre_norm("qwen3_moe", moe_intermediate_size=128, **GEOMETRY)
    save(model, directory)
    model.load_state_dict(stacked(save_words(directory, "gptq", desc_act=False)), strict=False)
    return model


def longrope(directory: Path) -> PreTrainedModel:
    """Save a Phi-3 in AWQ whose heads are partly rotated, with factors for long texts."""
    changes: dict[str, Any] = {
        "rope_parameters": LONGROPE,
        "original_max_position_embeddings": TRAINED,
        "eos_token_id": None,
    }
    model = random_pre_norm("phi3", **changes, **GEOMETRY)
    save(model, directory)
    values = save_words(directory, "awq", version="gemm", zero_point=True)
    model.load_state_dict(values, strict=False)
    return model


def exported(checkpoint: Path, artifact: Path) -> Runner:
    options = ["--drafter", "ngram", "--no-self-test", "--max-batch-size", "2"]
    sizes = ["--max-seq-len", "512"]
    paths = ["--target-dir", str(checkpoint), "--output-dir", str(artifact)]
    command = [export_program(), "--target-model", "auto", "--backend", "cuda"]
    subprocess.run([*command, *options, *sizes, *paths], check=True)
    return load_artifact(artifact)


@pytest.mark.parametrize("form", [ordered_and_eight_bits, ordered_experts, longrope])
def test_logits_are_those_of_transformers_and_rows_do_not_depend_on_others(
    form: Callable[[Path], PreTrainedModel], tmp_path: Path
) -> None:
    model = form(tmp_path / "checkpoint")
    add_tokenizer(tmp_path / "checkpoint")
    edit_config(tmp_path / "checkpoint", torch_dtype="bfloat16")
    runner = exported(tmp_path / "checkpoint", tmp_path / "artifact")
    device, first = runner.executor.device, torch.zeros(1, dtype=torch.int64)
    for length in (70, 200):
        tokens = random_tokens(length)
        positions = torch.arange(length)
        given = (t.to(device) for t in (tokens, positions, first))
        logits = runner.executor.run("prefill", *given)[0].float().cpu().flatten()
        expected = oracle_states(model, tokens)[0][-1]
        assert relative_error(logits, expected) < 5e-2
    for context in (17, 300):
        assert [one for one in RowCheck(runner, context).all() if one.different] == []
