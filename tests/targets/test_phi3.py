"""Phi-3 decoders, with stacked projections and partly rotated heads, compared with transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets import load_target
from support.checkpoint_edits import edit_config
from support.files.int4 import Tensors, awq, count_int4_linears, gptq, rounded
from support.gemma_oracle import oracle_states, random_tokens, run_in_chunks
from support.pre_norm_oracle import random_pre_norm, save

GEOMETRY: dict[str, Any] = {"num_key_value_heads": 1, "hidden_size": 64, "intermediate_size": 96}
WHOLE = {"rope_type": "default", "rope_theta": 1000.0}
PARTIAL = WHOLE | {"partial_rotary_factor": 0.75}
LONGROPE = PARTIAL | {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.25, 1.5, 2.0, 2.5, 4.0],
    "long_factor": [1.5, 2.0, 4.0, 9.0, 17.0, 30.0],
}
CONTEXT = 24


def matches(directory: Path, model: Any, max_seq_len: int, length: int) -> bool:
    """Whether logits of a prompt and of the tokens after it are those of transformers."""
    tokens = random_tokens(length)
    logits, _ = run_in_chunks(load_target(directory, max_seq_len), tokens, [70, 1])
    return bool((logits - oracle_states(model, tokens)[0]).abs().max() < 1e-4)


@pytest.mark.parametrize(("rope", "window"), [(WHOLE, None), (WHOLE, 8), (PARTIAL, 8)])
def test_a_phi3_matches_transformers(
    tmp_path: Path, rope: dict[str, Any], window: int | None
) -> None:
    model = random_pre_norm("phi3", rope_parameters=rope, sliding_window=window, **GEOMETRY)
    save(model, tmp_path)
    assert load_target(tmp_path, 96).sliding_window == (window or 0)
    assert matches(tmp_path, model, 96, 80)


@pytest.mark.parametrize(("max_seq_len", "length"), [(CONTEXT, CONTEXT), (25, 25), (96, 80)])
def test_a_partial_longrope_has_the_table_of_the_exports_length(
    tmp_path: Path, max_seq_len: int, length: int
) -> None:
    """As Phi-4-mini has it: the attention factor is of the rotated pairs alone."""
    changes: dict[str, Any] = {
        "rope_parameters": LONGROPE,
        "original_max_position_embeddings": CONTEXT,
    }
    model = random_pre_norm("phi3", **changes, **GEOMETRY)
    assert model.model.rotary_emb.attention_scaling > 1.1
    save(model, tmp_path)
    assert matches(tmp_path, model, max_seq_len, length)


def test_the_older_spelling_of_a_longrope_is_read_alike(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "rope_parameters": LONGROPE,
        "original_max_position_embeddings": CONTEXT,
    }
    model = random_pre_norm("phi3", **changes, **GEOMETRY)
    save(model, tmp_path)
    scaling = {key: value for key, value in LONGROPE.items() if key.endswith("_factor")}
    del scaling["partial_rotary_factor"]
    older = {"rope_theta": 1000.0, "partial_rotary_factor": 0.75}
    edit_config(tmp_path, rope_parameters=None, rope_scaling={"type": "su"} | scaling, **older)
    assert matches(tmp_path, model, 96, 80)


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_quantised_stacked_linears_are_split_by_rows(tmp_path: Path, method: str) -> None:
    """With GPTQ in the order of activations, which is folded into gate and up after the split."""
    model = random_pre_norm("phi3", rope_parameters=PARTIAL, **GEOMETRY)
    save(model, tmp_path)
    tensors, values = load_file(tmp_path / "model.safetensors"), Tensors()
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        grid = rounded(tensors.pop(name), 32, act_order=method == "gptq")
        parts = awq(grid) if method == "awq" else gptq(grid, 1)
        tensors |= {name.removesuffix("weight") + part: t for part, t in parts.items()}
        values[name] = grid.dense
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"quant_method": method, "bits": 4, "group_size": 32, "desc_act": method == "gptq"}
    edit_config(tmp_path, quantization_config=config | {"zero_point": True})
    model.load_state_dict(values, strict=False)
    assert count_int4_linears(load_target(tmp_path, 96)) == 7 * 4
    assert matches(tmp_path, model, 96, 80)


@pytest.mark.parametrize(("rope", "error", "message"), [
    (LONGROPE | {"short_factor": [1.0] * 8}, CheckpointError, "longrope has 8 factors for 6 pairs"),
    (LONGROPE | {"short_factor": [1.0, 0.0]}, CheckpointError, "expected a list of positive num"),
    (LONGROPE | {"short_mscale": 1.2}, UnsupportedError, "short_mscale and long_mscale are not"),
    (PARTIAL | {"partial_rotary_factor": 1.5}, CheckpointError, "1.5 rotates 12 pairs of a head"),
    (PARTIAL | {"rope_type": "dynamic", "alpha": 9.0}, UnsupportedError, "alpha of a dynamic"),
])  # fmt: skip
def test_odd_ropes_are_refused_in_one_line(
    tmp_path: Path, rope: dict[str, Any], error: type[Exception], message: str
) -> None:
    save(random_pre_norm("phi3", **GEOMETRY), tmp_path)
    edit_config(tmp_path, rope_parameters=rope)
    with pytest.raises(error, match=message) as raised:
        load_target(tmp_path, 16)
    assert "\n" not in str(raised.value)


def test_phi3_in_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    model, tokens = random_pre_norm("phi3", rope_parameters=PARTIAL, **GEOMETRY), random_tokens(24)
    target = load_target(save(model, tmp_path), 32, torch.bfloat16)
    logits, _ = run_in_chunks(target, tokens, [8])
    expected, _ = oracle_states(model, tokens)
    assert ((logits - expected).norm() / expected.norm()) < 0.03
