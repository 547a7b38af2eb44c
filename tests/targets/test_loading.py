"""Checkpoints that the loaders accept, and the errors for all others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4ForCausalLM

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets import get_target, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder import weights
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import Gemma4Config
from support.checkpoint_edits import Tensors, edit_config, edit_tensors
from support.gemma_oracle import (
    FULL,
    SLIDING,
    random_gemma,
    random_tokens,
    run_in_chunks,
    save_multimodal_layout,
    save_text_layout,
)
from support.pre_norm_oracle import FAMILIES, LLAMA3_ROPE, random_pre_norm, save

GEMMA = "gemma4"
UP_PROJ = "model.layers.2.mlp.up_proj.weight"


def write(family: str, directory: Path, **changes: Any) -> Path:
    """Write a random checkpoint of a family."""
    if family == GEMMA:
        return save_text_layout(random_gemma(**changes), directory)
    return save(random_pre_norm(family, **changes), directory)


@pytest.fixture(params=[GEMMA, *FAMILIES])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of each family."""
    return write(request.param, tmp_path / request.param)


@pytest.fixture(params=FAMILIES)
def pre_norm(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(request.param, tmp_path / request.param)


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    return write(GEMMA, tmp_path / GEMMA)


def read_config(config: dict[str, Any]) -> Gemma4Config:
    return Gemma4Config.from_hf(ConfigSection(config, Path("config.json")))


@pytest.mark.parametrize("key", [
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "rms_norm_eps"),
])  # fmt: skip
def test_a_missing_config_key_is_named(directory: Path, key: str) -> None:
    edit_config(directory, **{key: None})
    with pytest.raises(CheckpointError, match=f"key '{key}' is missing"):
        load_target(directory, 16)


@pytest.mark.parametrize(
    "key", ["layer_types", "num_key_value_heads", "head_dim", "sliding_window"]
)
def test_a_missing_key_without_a_default_in_gemma4_is_named(gemma: Path, key: str) -> None:
    edit_config(gemma, **{key: None})
    with pytest.raises(CheckpointError, match=f"key '{key}' is missing"):
        load_target(gemma, 16)


@pytest.mark.parametrize(("changes", "message"), [
    ({"hidden_size": "64"}, "hidden_size is '64', expected a positive integer"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', expected true or false"),
    ({"rope_parameters": [1]}, r"rope_parameters is \[1\], expected an object"),
])  # fmt: skip
def test_an_invalid_config_value_is_named(
    directory: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(directory, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_target(directory, 16)


@pytest.mark.parametrize(("changes", "message"), [
    ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a positive integer"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0, expected a positive number"),
    ({"layer_types": "full"}, "layer_types is 'full', expected a list of strings"),
    ({"layer_types": ["full_attention", "mamba"]}, "layer_types and num_hidden_layers"),
    ({"per_layer_config": {"1": 3}}, "1 is 3, expected an object"),
    ({"num_hidden_layers": 3}, "layer_types and num_hidden_layers disagree"),
    ({"hidden_size": 2**40}, "hidden_size is 1099511627776, expected at most"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 1024"),
])  # fmt: skip
def test_an_invalid_value_of_gemma4_is_named(
    gemma: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(gemma, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_target(gemma, 16)


@pytest.mark.parametrize(("changes", "message"), [
    ({"num_key_value_heads": 3}, "4 query heads, 3 key/value heads of 16"),
    ({"head_dim": 15}, "4 query heads, 2 key/value heads of 15"),
    ({"head_dim": 8}, r"q_proj\.weight is \[64, 32\], config\.json says \[32, 32\]"),
])  # fmt: skip
def test_heads_that_do_not_fit_are_refused(
    pre_norm: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(pre_norm, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_target(pre_norm, 16)


def test_missing_unknown_and_misshapen_tensors_are_named(directory: Path) -> None:
    unknown = "model.layers.2.self_attn.o_proj.bias"
    edit_tensors(directory, lambda t: t.update({unknown: torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"unknown tensors .*2\.self_attn\.o_proj\.bias"):
        load_target(directory, 16)
    edit_tensors(directory, lambda t: (t.pop(unknown), t.pop(UP_PROJ)))
    with pytest.raises(CheckpointError, match=f"tensor '{UP_PROJ}' is missing"):
        load_target(directory, 16)
    edit_tensors(directory, lambda t: t.update({UP_PROJ: torch.ones(48, 31)}))
    with pytest.raises(CheckpointError, match=r"up_proj\.weight is \[48, 31\], .* \[48, 32\]"):
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


@pytest.mark.parametrize("family", [GEMMA, *FAMILIES])
def test_an_untied_output_table_is_read_from_lm_head(tmp_path: Path, family: str) -> None:
    directory = write(family, tmp_path, tie_word_embeddings=False)
    target, stored = load_target(directory, 16), load_file(directory / "model.safetensors")
    assert torch.equal(target.lm_head_weight, stored["lm_head.weight"])
    assert torch.equal(target.embed_weight, stored["model.embed_tokens.weight"])
    edit_tensors(directory, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is missing"):
        load_target(directory, 16)


@pytest.mark.parametrize(("changes", "message"), [
    ({"hidden_size_per_layer_input": 256}, "per-layer embeddings"),
    ({"hidden_size_per_layer_input": None}, "per-layer embeddings"),
    ({"num_kv_shared_layers": 2}, "shared KV layers"),
    ({"attention_bias": True}, "attention biases"),
    ({"hidden_activation": "relu"}, "activation 'relu'"),
    ({"per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 8}}}, "per_layer_config"),
    ({"per_layer_config": {"0": {"head_dim": 16}}}, "per_layer_config"),
])  # fmt: skip
def test_a_gemma4_variant_with_other_math_is_refused(
    gemma: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(gemma, **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_target(gemma, 16)


@pytest.mark.parametrize("kind", [SLIDING, FULL])
def test_a_rope_type_of_another_kind_is_refused(gemma: Path, kind: str) -> None:
    rope = json.loads((gemma / "config.json").read_text())["rope_parameters"]
    rope[kind]["rope_type"] = "yarn"
    edit_config(gemma, rope_parameters=rope)
    with pytest.raises(UnsupportedError, match=f"rope_type 'yarn' on {kind} layers"):
        load_target(gemma, 16)


@pytest.mark.parametrize("name", ["model.layers.0.layer_scalar", "model.norm.weight"])
def test_a_missing_norm_or_scalar_is_refused_like_a_missing_matrix(gemma: Path, name: str) -> None:
    edit_tensors(gemma, lambda t: t.pop(name))
    with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing"):
        load_target(gemma, 16)


def test_a_checkpoint_without_an_embedding_is_refused(gemma: Path) -> None:
    edit_tensors(gemma, lambda t: t.pop("model.embed_tokens.weight"))
    with pytest.raises(CheckpointError, match=r"no model\.language_model\.embed_tokens\.weight"):
        load_target(gemma, 16)


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


@pytest.mark.parametrize("save", [save_text_layout, save_multimodal_layout])
def test_a_gemma4_base_model_saved_without_a_prefix_is_read(
    tmp_path: Path, save: Callable[[Gemma4ForCausalLM, Path], Path]
) -> None:
    directory = save(random_gemma(), tmp_path)
    expected = run_in_chunks(load_target(directory, 16), random_tokens(9), [9])[0]
    tensors = load_file(directory / "model.safetensors")
    renamed = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(renamed, directory / "model.safetensors")
    assert torch.equal(
        run_in_chunks(load_target(directory, 16), random_tokens(9), [9])[0], expected
    )


def test_an_unknown_layer_type_is_refused(gemma: Path) -> None:
    kinds = json.loads((gemma / "config.json").read_text())["layer_types"]
    edit_config(gemma, layer_types=["mamba", *kinds[1:]])
    with pytest.raises(UnsupportedError, match="layer type 'mamba'"):
        load_target(gemma, 16)


def test_bidirectional_attention_is_refused_for_text_but_not_for_vision(gemma: Path) -> None:
    edit_config(gemma, use_bidirectional_attention="vision")
    load_target(gemma, 16)
    edit_config(gemma, use_bidirectional_attention="all")
    with pytest.raises(UnsupportedError, match="bidirectional text attention"):
        load_target(gemma, 16)


def test_missing_rope_parameters_default_to_the_published_ones(gemma: Path) -> None:
    stored = json.loads((gemma / "config.json").read_text())
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


@pytest.mark.parametrize(("changes", "message"), [
    ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
    ({"rope_parameters": {"rope_type": "axial"}}, "rope type 'axial' is not supported"),
    ({"model_type": "olmo2"}, r"model_type 'olmo2' \(its norms follow the branches, .*; known: g"),
    ({"model_type": "qwen2_moe"}, r"model_type 'qwen2_moe' \(its layers have experts\); kno"),
    ({"model_type": "mamba"}, "model_type 'mamba'; known: .*, qwen3_moe, .*qwen2, .*, phi3$"),
])  # fmt: skip
def test_unsupported_math_is_refused_by_name(
    pre_norm: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(pre_norm, **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_target(pre_norm, 16)


def test_a_checkpoint_of_another_family_than_requested_is_refused(pre_norm: Path) -> None:
    family = pre_norm.name
    requested = "llama-3.1-8b" if family == "qwen3" else "qwen3-8b"
    with pytest.raises(UnsupportedError, match=f"model_type '{family}', not .*-model auto"):
        get_target(requested).load(
            Checkpoint(pre_norm), torch.float32, CacheSpec(16, torch.float32)
        )


def test_stored_rotary_tables_of_old_checkpoints_are_ignored(pre_norm: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(pre_norm, lambda t: t.update({name: torch.zeros(8)}))
    load_target(pre_norm, 16)


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
    listed = {"layer_types": sliding, "use_sliding_window": False}
    for changes in (listed, {"layer_types": ["full_attention"]}):
        edit_config(directory, **changes)
        with pytest.raises(CheckpointError, match="layer_types disagrees with num_hidden_layers"):
            load_target(directory, 16)
    edit_config(directory, layer_types=sliding, use_sliding_window=True, sliding_window=None)
    with pytest.raises(CheckpointError, match="key 'sliding_window' is missing"):
        load_target(directory, 16)
    edit_config(directory, layer_types=["mamba", *sliding[1:]])
    with pytest.raises(UnsupportedError, match="layer type 'mamba'"):
        load_target(directory, 16)


def test_listed_sliding_layers_slide_without_a_flag(tmp_path: Path) -> None:
    kinds = ["sliding_attention", *["full_attention"] * 3]
    sliding: dict[str, Any] = {
        "layer_types": kinds,
        "use_sliding_window": True,
        "sliding_window": 8,
    }
    directory = save(random_pre_norm("qwen3", **sliding), tmp_path)
    expected = run_in_chunks(load_target(directory, 32), random_tokens(30), [9])[0]
    edit_config(directory, use_sliding_window=None)
    assert load_target(directory, 32).sliding_window == 8
    assert torch.equal(
        run_in_chunks(load_target(directory, 32), random_tokens(30), [9])[0], expected
    )
    edit_config(directory, layer_types=["full_attention"] * 4, sliding_window=None)
    assert load_target(directory, 32).sliding_window == 0


def test_a_bias_of_zeros_is_skipped_where_a_linear_has_none(pre_norm: Path) -> None:
    """AutoGPTQ writes one for every linear."""
    before = run_in_chunks(load_target(pre_norm, 16), random_tokens(5), [5])[0]
    zeros = {"model.layers.0.self_attn.o_proj.bias": torch.zeros(32)}
    edit_tensors(pre_norm, lambda tensors: tensors.update(zeros))
    assert torch.equal(run_in_chunks(load_target(pre_norm, 16), random_tokens(5), [5])[0], before)
    edit_tensors(pre_norm, lambda tensors: tensors[next(iter(zeros))][3].add_(1))
    with pytest.raises(CheckpointError, match=r"unknown tensors .*o_proj\.bias"):
        load_target(pre_norm, 16)


@pytest.mark.parametrize(("family", "name"), [("qwen2", "k_proj"), ("llama", "down_proj")])
def test_a_missing_or_misshapen_bias_is_named(tmp_path: Path, family: str, name: str) -> None:
    directory = save(random_pre_norm(family, mlp_bias=True), tmp_path)
    branch = "mlp" if name == "down_proj" else "self_attn"
    bias = f"model.layers.2.{branch}.{name}.bias"
    edit_tensors(directory, lambda tensors: tensors.update({bias: torch.ones(3)}))
    with pytest.raises(CheckpointError, match=rf"{name}\.bias is \[3\], config\.json says \[32\]"):
        load_target(directory, 16)
    edit_tensors(directory, lambda tensors: tensors.pop(bias))
    with pytest.raises(CheckpointError, match=rf"{name}\.bias' is missing"):
        load_target(directory, 16)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("index", [0, -1])
def test_nan_and_infinity_are_found_anywhere_in_a_tensor(
    pre_norm: Path, value: float, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors["model.norm.weight"][index] = value

    monkeypatch.setattr(
        weights, "CHECKED_ELEMENTS", 5
    )  # elements at a time, of more than one piece
    edit_tensors(pre_norm, spoil)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds NaN or infinite"):
        load_target(pre_norm, 16)


@pytest.mark.parametrize("dtype", [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.complex64, torch.bool,
])  # fmt: skip
def test_dtypes_whose_values_need_more_than_the_tensor_are_refused_by_name(
    pre_norm: Path, dtype: torch.dtype
) -> None:
    edit_tensors(pre_norm, lambda tensors: tensors.update({UP_PROJ: tensors[UP_PROJ].to(dtype)}))
    kind = str(dtype).replace(".", r"\.")
    with pytest.raises(CheckpointError, match=rf"2\.mlp\.up_proj\.weight holds {kind} values"):
        load_target(pre_norm, 16)
