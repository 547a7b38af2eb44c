"""What the Llama and Qwen3 loaders accept, and their errors."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets import get_target, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder import weights
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.checkpoint_edits import Tensors, edit_config, edit_tensors
from support.gemma_oracle import random_tokens, run_in_chunks
from support.pre_norm_oracle import FAMILIES, LLAMA3_ROPE, random_pre_norm, save


@pytest.fixture(params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(random_pre_norm(request.param), tmp_path / request.param)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias is not supported: linears have no bias"),
        ({"mlp_bias": True}, "mlp_bias is not supported: linears have no bias"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope' is not supported"),
        ({"model_type": "qwen2"}, r"model_type 'qwen2' \(its q, k and v have biases\); known: g"),
        ({"model_type": "qwen3_moe"}, r"model_type 'qwen3_moe' \(its layers have experts\); kno"),
        ({"model_type": "mamba"}, "model_type 'mamba'; known: .*, qwen3, llama$"),
    ],
)
def test_unsupported_math_is_refused_by_name(
    directory: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(directory, **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_target(directory, 16)


def test_a_checkpoint_of_another_family_than_requested_is_refused(directory: Path) -> None:
    family = directory.name
    requested = {"llama": "qwen3-8b", "qwen3": "llama-3.1-8b"}[family]
    with pytest.raises(UnsupportedError, match=f"model_type '{family}', not .*-model auto"):
        get_target(requested).load(
            Checkpoint(directory), torch.float32, CacheSpec(16, torch.float32)
        )


@pytest.mark.parametrize(
    "key",
    [
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "rms_norm_eps"),
    ],
)
def test_a_missing_config_key_is_named(directory: Path, key: str) -> None:
    edit_config(directory, **{key: None})
    with pytest.raises(CheckpointError, match=f"key '{key}' is missing"):
        load_target(directory, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size is '64', expected a positive integer"),
        ({"num_key_value_heads": 3}, "4 query heads, 3 key/value heads of 16"),
        ({"head_dim": 15}, "4 query heads, 2 key/value heads of 15"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', expected true or false"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], expected an object"),
        ({"head_dim": 8}, r"q_proj\.weight is \[64, 32\], config\.json says \[32, 32\]"),
    ],
)
def test_an_invalid_config_value_is_named(
    directory: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(directory, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_target(directory, 16)


def test_missing_and_unknown_tensors_are_named(directory: Path) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    bias = "model.layers.2.self_attn.q_proj.bias"
    edit_tensors(directory, lambda t: t.update({bias: torch.zeros(64)}))
    with pytest.raises(CheckpointError, match=r"unknown tensors .*q_proj\.bias"):
        load_target(directory, 16)
    edit_tensors(directory, lambda t: (t.pop(bias), t.pop(name)))
    with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing"):
        load_target(directory, 16)


def test_stored_rotary_tables_of_old_checkpoints_are_ignored(directory: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(directory, lambda t: t.update({name: torch.zeros(8)}))
    load_target(directory, 16)


def test_a_tied_output_table_may_be_stored_twice_but_not_differ(directory: Path) -> None:
    before = run_in_chunks(load_target(directory, 16), random_tokens(5), [5])[0]
    embedding = "model.embed_tokens.weight"
    edit_tensors(directory, lambda t: t.update({"lm_head.weight": t[embedding].clone()}))
    target = load_target(directory, 16)
    assert target.lm_head_weight is target.embed_weight
    assert torch.equal(run_in_chunks(target, random_tokens(5), [5])[0], before)
    edit_tensors(directory, lambda t: t["lm_head.weight"][7].add_(0.01))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from embed_tokens"):
        load_target(directory, 16)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untied_output_table_is_read_from_lm_head(tmp_path: Path, family: str) -> None:
    directory = save(random_pre_norm(family, tie_word_embeddings=False), tmp_path)
    target, stored = load_target(directory, 16), load_file(directory / "model.safetensors")
    assert torch.equal(target.lm_head_weight, stored["lm_head.weight"])
    assert torch.equal(target.embed_weight, stored["model.embed_tokens.weight"])
    edit_tensors(directory, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is missing"):
        load_target(directory, 16)


def test_missing_config_keys_have_the_familys_defaults(tmp_path: Path) -> None:
    llama = save(random_pre_norm("llama", head_dim=8, num_key_value_heads=4), tmp_path / "llama")
    qwen = save(random_pre_norm("qwen3", head_dim=128), tmp_path / "qwen")
    for directory in (llama, qwen):
        expected = run_in_chunks(load_target(directory, 16), random_tokens(9), [9])[0]
        edit_config(directory, head_dim=None, layer_types=None, hidden_act=None)
        if directory is llama:
            edit_config(directory, num_key_value_heads=None)
        assert torch.equal(
            run_in_chunks(load_target(directory, 16), random_tokens(9), [9])[0], expected
        )


def test_the_older_rope_spelling_is_read_alike(tmp_path: Path) -> None:
    directory = save(random_pre_norm("llama", rope_parameters=LLAMA3_ROPE), tmp_path)
    expected = run_in_chunks(load_target(directory, 32), random_tokens(30), [9])[0]
    rope = {k: v for k, v in LLAMA3_ROPE.items() if k != "rope_theta"}
    edit_config(directory, rope_parameters=None, rope_theta=1000.0, rope_scaling=rope)
    logits = run_in_chunks(load_target(directory, 32), random_tokens(30), [9])[0]
    assert torch.equal(logits, expected)


def test_qwens_layer_types_must_agree_with_other_keys(tmp_path: Path) -> None:
    directory = save(random_pre_norm("qwen3"), tmp_path)
    sliding = ["sliding_attention", *["full_attention"] * 3]
    for changes in ({"layer_types": sliding}, {"layer_types": ["full_attention"]}):
        edit_config(directory, **changes)
        with pytest.raises(CheckpointError, match="layer_types disagrees with num_hidden_layers"):
            load_target(directory, 16)
    edit_config(directory, layer_types=sliding, use_sliding_window=True, sliding_window=None)
    with pytest.raises(CheckpointError, match="key 'sliding_window' is missing"):
        load_target(directory, 16)
    edit_config(directory, layer_types=["mamba", *sliding[1:]])
    with pytest.raises(UnsupportedError, match="layer type 'mamba'"):
        load_target(directory, 16)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, -1])
def test_nan_and_infinity_are_found_anywhere_in_a_tensor(
    directory: Path, value: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors["model.norm.weight"][place] = value

    monkeypatch.setattr(
        weights, "CHECKED_ELEMENTS", 5
    )  # elements at a time, of more than one piece
    edit_tensors(directory, spoil)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds NaN or infinite"):
        load_target(directory, 16)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
def test_dtypes_whose_values_need_more_than_the_tensor_are_refused_by_name(
    directory: Path, dtype: torch.dtype
) -> None:
    def convert(tensors: Tensors) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(dtype)

    edit_tensors(directory, convert)
    kind = str(dtype).replace(".", r"\.")
    with pytest.raises(CheckpointError, match=rf"0\.mlp\.up_proj\.weight holds {kind} values"):
        load_target(directory, 16)
