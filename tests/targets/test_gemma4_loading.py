"""What the Gemma 4 loader accepts, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets import load_target
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.gemma4 import Gemma4Config
from support.checkpoint_edits import edit_config, edit_tensors
from support.gemma_oracle import (
    FULL,
    SLIDING,
    random_gemma,
    random_tokens,
    run_in_chunks,
    save_multimodal_layout,
    save_text_layout,
)


def read_config(config: dict[str, Any]) -> Gemma4Config:
    return Gemma4Config.from_hf(ConfigSection(config, Path("config.json")))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_text_layout(random_gemma(), tmp_path / "gemma")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size_per_layer_input": 256}, "per-layer embeddings"),
        ({"hidden_size_per_layer_input": None}, "per-layer embeddings"),
        ({"num_kv_shared_layers": 2}, "shared KV layers"),
        ({"enable_moe_block": True}, "experts"),
        ({"attention_bias": True}, "attention biases"),
        ({"hidden_activation": "relu"}, "activation 'relu'"),
        ({"per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 8}}}, "per_layer_config"),
        ({"per_layer_config": {"0": {"head_dim": 16}}}, "per_layer_config"),
    ],
)
def test_a_variant_with_other_math_is_refused(
    directory: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(directory, **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_target(directory, 16)


@pytest.mark.parametrize("kind", [SLIDING, FULL])
def test_a_rope_type_of_another_kind_is_refused(directory: Path, kind: str) -> None:
    rope = json.loads((directory / "config.json").read_text())["rope_parameters"]
    rope[kind]["rope_type"] = "yarn"
    edit_config(directory, rope_parameters=rope)
    with pytest.raises(UnsupportedError, match=f"rope_type 'yarn' on {kind} layers"):
        load_target(directory, 16)


@pytest.mark.parametrize(
    "key",
    [
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "layer_types"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window"),
        "rms_norm_eps",
    ],
)
def test_a_missing_config_key_is_named(directory: Path, key: str) -> None:
    edit_config(directory, **{key: None})
    with pytest.raises(CheckpointError, match=f"key '{key}' is missing"):
        load_target(directory, 16)


def test_layer_types_and_layer_count_must_agree(directory: Path) -> None:
    edit_config(directory, num_hidden_layers=3)
    with pytest.raises(CheckpointError, match="layer_types and num_hidden_layers disagree"):
        load_target(directory, 16)


def test_missing_unknown_and_misshapen_tensors_are_named(directory: Path) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    edit_tensors(directory, lambda t: t.update({"model.layers.2.surprise": torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"unknown tensors model\.layers\.2\.surprise"):
        load_target(directory, 16)
    edit_tensors(directory, lambda t: (t.pop("model.layers.2.surprise"), t.pop(name)))
    with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing"):
        load_target(directory, 16)
    edit_tensors(directory, lambda t: t.update({name: torch.ones(48, 31)}))
    with pytest.raises(CheckpointError, match=r"up_proj\.weight is \[48, 31\], .* \[48, 32\]"):
        load_target(directory, 16)


@pytest.mark.parametrize("name", ["model.layers.0.layer_scalar", "model.norm.weight"])
def test_a_missing_norm_or_scalar_is_refused_like_a_missing_matrix(
    directory: Path, name: str
) -> None:
    edit_tensors(directory, lambda t: t.pop(name))
    with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing"):
        load_target(directory, 16)


def test_a_checkpoint_without_an_embedding_is_refused(directory: Path) -> None:
    edit_tensors(directory, lambda t: t.pop("model.embed_tokens.weight"))
    with pytest.raises(CheckpointError, match=r"no model\.language_model\.embed_tokens\.weight"):
        load_target(directory, 16)


def test_a_tied_output_table_may_be_stored_twice_but_not_differ(directory: Path) -> None:
    before = run_in_chunks(load_target(directory, 16), random_tokens(5), [5])[0]
    edit_tensors(
        directory, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    )
    target = load_target(directory, 16)
    assert target.lm_head_weight is target.embed_weight
    assert torch.equal(run_in_chunks(target, random_tokens(5), [5])[0], before)
    edit_tensors(directory, lambda t: t["lm_head.weight"][7].add_(0.01))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from embed_tokens"):
        load_target(directory, 16)


def test_an_untied_output_table_is_read_from_lm_head(tmp_path: Path) -> None:
    directory = save_text_layout(random_gemma(tie_word_embeddings=False), tmp_path)
    target = load_target(directory, 16)
    stored = load_file(directory / "model.safetensors")
    assert torch.equal(target.lm_head_weight, stored["lm_head.weight"])
    assert torch.equal(target.embed_weight, stored["model.embed_tokens.weight"])
    edit_tensors(directory, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is missing"):
        load_target(directory, 16)


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_full_layer_dims_are_read_from_both_config_spellings(tmp_path: Path, digits: int) -> None:
    geometry: dict[str, Any] = {"layer_types": [SLIDING] * 5 + [FULL] * 2}
    model = random_gemma(**geometry)
    published = save_multimodal_layout(model, tmp_path / "published", **geometry)
    saved = save_text_layout(model, tmp_path / "saved")
    table = {str(i).zfill(digits): {"head_dim": 16, "num_key_value_heads": 1} for i in (5, 6)}
    edit_config(saved, per_layer_config=table)
    configs = [json.loads((d / "config.json").read_text()) for d in (published, saved)]
    assert "per_layer_config" not in configs[0]["text_config"]
    assert read_config(configs[0]) == read_config(configs[1])
    read = read_config(configs[1])
    assert (read.dims(0), read.dims(5), read.dims(6)) == ((8, 2), (16, 1), (16, 1))


def test_only_tensors_of_vision_and_audio_towers_are_skipped(tmp_path: Path) -> None:
    directory = save_multimodal_layout(random_gemma(), tmp_path)
    edit_tensors(directory, lambda t: t.update({"model.audio_tower.x": torch.ones(1)}))
    load_target(directory, 16)
    edit_tensors(directory, lambda t: t.update({"model.language_model.x": torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"unknown tensors model\.language_model\.x"):
        load_target(directory, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size is '64', expected a positive integer"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a positive integer"),
        ({"hidden_size": 2**40}, "hidden_size is 1099511627776, expected at most"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 1024"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0, expected a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', expected true or false"),
        ({"layer_types": "full"}, "layer_types is 'full', expected a list of strings"),
        ({"layer_types": ["full_attention", "mamba"]}, "layer_types and num_hidden_layers"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], expected an object"),
        ({"per_layer_config": {"1": 3}}, "1 is 3, expected an object"),
    ],
)
def test_an_invalid_config_value_is_named(
    directory: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(directory, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_target(directory, 16)


def test_an_unknown_layer_type_is_refused(directory: Path) -> None:
    kinds = json.loads((directory / "config.json").read_text())["layer_types"]
    edit_config(directory, layer_types=["mamba", *kinds[1:]])
    with pytest.raises(UnsupportedError, match="layer type 'mamba'"):
        load_target(directory, 16)


def test_bidirectional_attention_is_refused_for_text_but_not_for_vision(directory: Path) -> None:
    edit_config(directory, use_bidirectional_attention="vision")
    load_target(directory, 16)
    edit_config(directory, use_bidirectional_attention="all")
    with pytest.raises(UnsupportedError, match="bidirectional text attention"):
        load_target(directory, 16)


def test_missing_rope_parameters_default_to_the_published_ones(directory: Path) -> None:
    stored = json.loads((directory / "config.json").read_text())
    expected = read_config(
        stored
        | {
            "rope_parameters": {
                SLIDING: {"rope_type": "default", "rope_theta": 1e4},
                FULL: {
                    "rope_type": "proportional",
                    "rope_theta": 1e6,
                    "partial_rotary_factor": 0.25,
                },
            }
        }
    )
    del stored["rope_parameters"]
    assert read_config(stored) == expected
