"""Whole targets in every weight format, compared with transformers."""

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.extension.llm.export.int4 import ExportableInt4Tensor
from executorch.extension.llm.export.quant import QuantConfig, quantize_weight
from gguf import GGMLQuantizationType as Type
from gguf import dequantize, quantize
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from transformers import Gemma4ForCausalLM, PreTrainedModel

from eagle_aot.common.errors import CheckpointError, SettingError, UnsupportedError
from eagle_aot.targets import TapTarget, get_target, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import Gemma4Target, load_gemma4
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.formats import format_of
from eagle_aot.targets.int4.quantise import SCHEMES, quantise
from eagle_aot.targets.registry import target_of
from eagle_aot.targets.stored_matrix import ignored_line, stored_matrices
from support import pre_norm_oracle
from support.checkpoint_edits import edit_config
from support.files.gguf import GgufModel
from support.files.int4 import (
    GROUP,
    Tensors,
    awq,
    count_int4_linears,
    dense,
    gptq,
    projections,
    rounded,
    save_words,
)
from support.gemma_oracle import (
    oracle_states,
    random_gemma,
    random_tokens,
    run_in_chunks,
    save_text_layout,
    write_config,
)
from support.golden_cases import golden_case, relative_error
from support.pre_norm_oracle import FAMILIES, STACKED, random_pre_norm, stacked

LINEARS = 26
GEOMETRY = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "global_head_dim": 32}
PRE_NORM = {"hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": False}


@pytest.fixture
def model() -> Gemma4ForCausalLM:
    return random_gemma(**GEOMETRY)


def save_awq(directory: Path) -> Tensors:
    return save_words(directory, "awq", version="gemm", zero_point=True)


def save_gptq(directory: Path) -> Tensors:
    return save_words(directory, "gptq", desc_act=False, sym=False)


def save_act_order(directory: Path) -> Tensors:
    return save_words(directory, "gptq", act_order=True, desc_act=True)


def save_mixed(directory: Path) -> Tensors:
    """Save with 8 bits in some linears and columns in the order of activations in all."""
    dynamic = {"+:.*down_proj": {"bits": 8}}
    return save_words(directory, "gptq", True, "down_proj", desc_act=True, dynamic=dynamic)


def save_torchao(directory: Path) -> Tensors:
    """Save like ExecuTorch's Gemma 4 quantiser: no prefix, INT8 embedding, own output table."""
    linears, tensors = projections(directory)
    int4 = QuantConfig(bits=4, group_size=GROUP, symmetric=False, method="min_max")
    int8 = QuantConfig(bits=8, group_size=64, symmetric=True, method="min_max")
    embedding = tensors.pop("model.embed_tokens.weight")
    stored = {n: quantize_weight(w.bfloat16(), int4) for n, w in linears.items()}
    stored["lm_head.weight"] = quantize_weight(embedding.bfloat16(), int4)
    values = {
        name: ExportableInt4Tensor.from_int4_tensor(weight).dequantize(torch.float32)
        for name, weight in stored.items()
    }
    stored["model.embed_tokens.weight"] = quantize_weight(embedding.bfloat16(), int8)
    table = stored["model.embed_tokens.weight"]
    values["model.embed_tokens.weight"] = table.qdata.float() * table.scale.float()
    stored |= tensors
    data, metadata = flatten_tensor_state_dict(
        {n.removeprefix("model."): t for n, t in stored.items()}
    )
    save_file(data, directory / "model.safetensors", metadata=metadata)
    return values


def save_gguf(directory: Path) -> Tensors:
    """Save Q4_0 linears, a Q8_0 embedding, and other tensors unchanged."""
    linears, tensors = projections(directory)
    file, values = GgufModel(directory / "model.gguf", "gemma4", layers=4), {}
    for name, weight in (linears | tensors).items():
        kind = Type.Q4_0 if name in linears else Type.F32
        kind = Type.Q8_0 if "embed_tokens" in name else kind
        file.add(name, weight, kind)
        values[name] = torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind).copy())
    file.close()
    (directory / "model.safetensors").unlink()
    return values


@pytest.mark.parametrize(("writer", "is_ordered"), [
    ("compressed_tensors", False), ("gptqmodel_gptq", False), ("gptqmodel_gptq_v2", False),
    ("auto_round", True), ("auto_round_auto_gptq", True),
])  # fmt: skip
def test_weights_equal_those_that_other_libraries_read(writer: str, is_ordered: bool) -> None:
    directory, expected = golden_case(f"weights/{writer}")
    checkpoint = Checkpoint(directory)
    layout = format_of(checkpoint)
    assert layout is not None and {layout.bits(checkpoint, name) for name in expected} == {4, 8}
    for name, values in expected.items():
        weight = layout.read(checkpoint, name)
        assert (weight.order is None) == is_ordered
        assert torch.equal(weight.dense().to(values.dtype), values)


@pytest.mark.parametrize("save", [save_awq, save_gptq, save_mixed, save_torchao, save_gguf])
def test_a_gemma4_matches_transformers_with_the_formats_values(
    tmp_path: Path, model: Gemma4ForCausalLM, save: Callable[[Path], Tensors]
) -> None:
    save_text_layout(model, tmp_path)
    values = save(tmp_path)
    extra = "lm_head.weight" in values
    if extra:
        model.lm_head.weight = torch.nn.Parameter(values["lm_head.weight"].clone())
    assert_computes(tmp_path, model, values, LINEARS + extra)


@pytest.mark.parametrize("save", [save_awq, save_gptq, save_act_order])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pre_norm_model_matches_transformers_with_the_formats_values(
    tmp_path: Path, family: str, save: Callable[[Path], Tensors]
) -> None:
    model = random_pre_norm(family, **PRE_NORM)
    pre_norm_oracle.save(model, tmp_path)
    dense = 3 if family == "qwen3_moe" and save is save_act_order else 0  # each has its order
    assert_computes(tmp_path, model, save(tmp_path), linears_of(family) - dense)


def linears_of(family: str) -> int:
    """Return how many linears a model of four layers has, with a stack of experts as one."""
    return 25 if family == "qwen3_moe" else 28


@pytest.mark.parametrize("save", [save_awq, save_gptq, save_mixed, save_torchao, save_gguf])
def test_a_dummy_has_the_formats_of_its_checkpoint(
    tmp_path: Path, model: Gemma4ForCausalLM, save: Callable[[Path], Tensors]
) -> None:
    save_text_layout(model, tmp_path)
    save(tmp_path)
    assert stored_like(dummy_of(tmp_path)) == stored_like(load_target(tmp_path, 32))


@pytest.mark.parametrize("family", [*FAMILIES, *STACKED])
@pytest.mark.parametrize("save", [None, save_gptq])
def test_a_dummy_needs_only_the_config(
    tmp_path: Path, family: str, save: Callable[[Path], Tensors] | None
) -> None:
    pre_norm_oracle.save(random_pre_norm(family, **PRE_NORM), tmp_path)
    if save is not None:
        save(tmp_path)
    loaded = load_target(tmp_path, 32)
    assert stored_like(dummy_of(tmp_path)) == stored_like(loaded)
    (tmp_path / "model.safetensors").unlink()
    assert stored_like(dummy_of(tmp_path)) == stored_like(loaded)
    assert count_int4_linears(dummy_of(tmp_path, group_size=16)) == linears_of(family)
    assert count_int4_linears(dummy_of(tmp_path)) == (linears_of(family) if save else 0)


def dummy_of(directory: Path, group_size: int | None = None) -> TapTarget:
    dummy = target_of(directory, group_size).dummy
    assert dummy is not None
    return dummy(torch.float32, CacheSpec(32, torch.float32), None)


def stored_like(target: TapTarget) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """Return dtype and shape of all tensors but the orders of columns, which a config lacks."""
    assert isinstance(target, torch.nn.Module)
    tensors = target.state_dict().items()
    return {name: (t.dtype, t.shape) for name, t in tensors if not name.endswith(".order")}


def assert_computes(directory: Path, model: Any, values: Tensors, linears: int) -> None:
    """Check the target in `directory` against the model with its weights replaced by `values`."""
    target = load_target(directory, 32)
    assert count_int4_linears(target) == linears
    assert_computes_with(target, model, values)


def assert_computes_with(target: TapTarget, model: Any, values: Tensors) -> None:
    assert not model.load_state_dict(stacked(values), strict=False).unexpected_keys
    tokens = random_tokens(30)
    logits, _ = run_in_chunks(target, tokens, [8])
    assert relative_error(logits, oracle_states(model, tokens)[0]) < 2e-5


def load_quantised(directory: Path, scheme: str) -> Gemma4Target:
    checkpoint = Checkpoint(directory, SCHEMES[scheme])
    return load_gemma4(checkpoint, torch.float32, CacheSpec(32, torch.float32))


@pytest.mark.parametrize("scheme", ["int4-g32", "int4-g32-hqq"])
def test_a_plain_model_is_quantised_on_load(
    tmp_path: Path, model: Gemma4ForCausalLM, scheme: str
) -> None:
    save_text_layout(model, tmp_path)
    linears, _ = projections(tmp_path)
    target = load_quantised(tmp_path, scheme)
    assert count_int4_linears(target) == LINEARS
    values = {n: dense(quantise(w, SCHEMES[scheme], torch.float32)) for n, w in linears.items()}
    assert_computes_with(target, model, values)


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_biases_and_routers_stay_dense_where_a_plain_model_is_quantised_on_load(
    tmp_path: Path, family: str
) -> None:
    model, scheme = random_pre_norm(family, **PRE_NORM), SCHEMES["int4-g32"]
    checkpoint = Checkpoint(pre_norm_oracle.save(model, tmp_path), scheme)
    linears, _ = projections(tmp_path)
    target = get_target(family).load(checkpoint, torch.float32, CacheSpec(32, torch.float32))
    assert count_int4_linears(target) == linears_of(family)
    values = {n: dense(quantise(w, scheme, torch.float32)) for n, w in linears.items()}
    assert_computes_with(target, model, values)


def test_tables_and_int4_linears_are_not_quantised_on_load(tmp_path: Path) -> None:
    save_text_layout(random_gemma(tie_word_embeddings=False, **GEOMETRY), tmp_path)
    assert isinstance(load_quantised(tmp_path, "int4-g32").lm_head, torch.nn.Linear)
    values = save_awq(tmp_path)
    layer = load_quantised(tmp_path, "int4-g32").layers[0].get_submodule("mlp.up_proj")
    assert isinstance(layer, Int4Linear)
    assert torch.equal(layer.dense().weight, values["model.layers.0.mlp.up_proj.weight"])


def test_one_dense_weight_at_a_time_is_in_memory(
    tmp_path: Path, model: Gemma4ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_text_layout(model, tmp_path)
    read, alive, most = Checkpoint.tensor, [], []

    def record(checkpoint: Checkpoint, name: str) -> Tensor:
        tensor = read(checkpoint, name)
        if name.endswith("_proj.weight"):
            alive.append(weakref.ref(tensor))
            most.append(sum(reference() is not None for reference in alive))
        return tensor

    monkeypatch.setattr(Checkpoint, "tensor", record)
    load_quantised(tmp_path, "int4-g32")
    assert most == [1] * LINEARS


def test_linears_of_a_gguf_in_more_bits_can_be_quantised(
    tmp_path: Path, model: Gemma4ForCausalLM
) -> None:
    save_text_layout(model, tmp_path)
    linears, tensors = projections(tmp_path)
    file = GgufModel(tmp_path / "model.gguf", "gemma4", layers=4)
    for name, weight in (linears | tensors).items():
        kind = Type.F32 if name in tensors else Type.Q8_0 if "v_proj" in name else Type.Q4_0
        file.add(name, weight, kind)
    file.close()
    (tmp_path / "model.safetensors").unlink()
    assert count_int4_linears(load_target(tmp_path, 32)) == 24
    assert count_int4_linears(load_quantised(tmp_path, "int4-g32")) == LINEARS


def test_a_group_size_that_does_not_divide_the_columns_is_refused(
    tmp_path: Path, model: Gemma4ForCausalLM
) -> None:
    save_text_layout(model, tmp_path)
    with pytest.raises(
        SettingError,
        match=r"--quantize: model\..*_proj\.weight has 64 columns, not a multiple of 128: ch",
    ):
        load_quantised(tmp_path, "int4-g128")


@pytest.mark.parametrize(("config", "message"), [
    ({"quant_method": "fp8"}, "method 'fp8': known are compressed-tensors, awq, gptq, torchao"),
    ({"bits": 4}, "quantization method ''"),
    ({"quant_method": "awq", "bits": 3}, "AWQ with 3 bits"),
    ({"quant_method": "gptq", "bits": 2}, "GPTQ with 2 bits"),
])  # fmt: skip
def test_unknown_quantisation_methods_are_refused(
    tmp_path: Path, model: Gemma4ForCausalLM, config: dict[str, Any], message: str
) -> None:
    save_text_layout(model, tmp_path)
    edit_config(tmp_path, quantization_config=config)
    with pytest.raises(UnsupportedError, match=message):
        load_target(tmp_path, 16)


@pytest.mark.parametrize("save", [save_awq, save_gptq, save_torchao])
def test_every_tensor_is_used_and_every_linear_filled(
    tmp_path: Path, model: Gemma4ForCausalLM, save: Callable[[Path], Tensors]
) -> None:
    save_text_layout(model, tmp_path)
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    metadata = metadata_of(path)
    save_file(tensors | {"model.layers.0.mlp.surprise": torch.ones(1)}, path, metadata=metadata)
    with pytest.raises(CheckpointError, match=r"unknown tensors model\.layers\.0\.mlp\.surprise"):
        load_target(tmp_path, 16)
    first = next(n for n in tensors if "layers.2.mlp.up_proj" in n and "scale" in n)
    del tensors[first]
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.up_proj\..* is missing"):
        load_target(tmp_path, 16)


@pytest.fixture
def llama(tmp_path: Path) -> PreTrainedModel:
    """A model whose dense checkpoint is in `tmp_path`."""
    model = random_pre_norm("llama", num_hidden_layers=2, **PRE_NORM)
    pre_norm_oracle.save(model, tmp_path)
    return model


def add_tensors(directory: Path, tensors: Tensors) -> None:
    path = directory / "model.safetensors"
    save_file(load_file(path) | tensors, path)


@pytest.mark.parametrize(("names", "scheme"), [
    (("self_attn.k_scale", "self_attn.v_scale"), {"num_bits": 8, "type": "float"}),
    (("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"), None),
    (("self_attn.kv_scale", "self_attn.k_zero_point"), {"num_bits": 8, "type": "int"}),
])  # fmt: skip
def test_scales_of_a_quantized_kv_cache_are_ignored(
    tmp_path: Path, llama: PreTrainedModel, names: tuple[str, ...], scheme: dict[str, Any] | None
) -> None:
    edit_config(
        tmp_path,
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "dense",
            "kv_cache_scheme": scheme,
        },
    )
    layers = (f"model.layers.{layer}." for layer in range(2))
    scales = {layer + name: torch.full((1,), 0.1) for layer in layers for name in names}
    add_tensors(tmp_path, scales)
    assert_computes(tmp_path, llama, {}, 0)
    kinds = ", ".join(sorted({name.rpartition(".")[2] for name in names}))
    expected = f"ignored: {len(scales)} scales of a quantized KV cache ({kinds}), "
    assert ignored_line(Checkpoint(tmp_path)).startswith(expected)
    pre_norm_oracle.save(llama, tmp_path)
    assert ignored_line(Checkpoint(tmp_path)) == ""
    dynamic = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"dynamic": True}}
    edit_config(tmp_path, quantization_config=dynamic)
    assert ignored_line(Checkpoint(tmp_path)).startswith("ignored: kv_cache_scheme, the KV cache")
    add_tensors(tmp_path, {"model.layers.0.self_attn.other_scale": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"unknown tensors .*\.other_scale"):
        load_target(tmp_path, 16)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_quantized_output_table_is_used_even_if_the_config_ties_it(
    tmp_path: Path, llama: PreTrainedModel, method: str
) -> None:
    """As transformers loads a tied checkpoint whose two tables have different values."""
    grid = rounded(load_file(tmp_path / "model.safetensors")["lm_head.weight"], GROUP)
    values = save_words(tmp_path, method)
    path = tmp_path / "model.safetensors"
    tensors = {n: t for n, t in load_file(path).items() if n != "lm_head.weight"}
    parts = awq(grid) if method == "awq" else gptq(grid, 1)
    save_file(tensors | {f"lm_head.{part}": t for part, t in parts.items()}, path)
    edit_config(tmp_path, tie_word_embeddings=True)
    assert_computes(tmp_path, llama, values | {"lm_head.weight": grid.dense}, 15)
    tables = [m for m in stored_matrices(Checkpoint(tmp_path)) if not m.is_linear]
    assert [(m.name, m.loaded_as) for m in tables] == [
        ("embed_tokens.weight", "dense"), ("lm_head.weight", "int4"),
    ]  # fmt: skip


def test_a_quantized_output_table_of_a_gguf_is_used_even_if_the_config_ties_it(
    tmp_path: Path,
) -> None:
    model = random_pre_norm("qwen3", num_hidden_layers=2, **PRE_NORM)
    tensors = load_file(pre_norm_oracle.save(model, tmp_path) / "model.safetensors")
    file = GgufModel(tmp_path / "model.gguf", "qwen3", layers=2)
    for name, weight in tensors.items():
        file.add(name, weight, Type.Q8_0 if name == "lm_head.weight" else Type.F32)
    file.close()
    (tmp_path / "model.safetensors").unlink()
    edit_config(tmp_path, tie_word_embeddings=True)
    table = quantize(tensors["lm_head.weight"].numpy(), Type.Q8_0)
    values = {"lm_head.weight": torch.from_numpy(dequantize(table, Type.Q8_0).copy())}
    assert_computes(tmp_path, model, values, 0)


@pytest.mark.parametrize(
    ("stored", "named", "steps"), [(2, "gptq", r"-1\.0"), (1, "gptq_v2", r"\+1\.0")]
)
@pytest.mark.usefixtures("llama")
def test_zero_points_of_another_version_are_noticed_without_sym(
    tmp_path: Path, stored: int, named: str, steps: str
) -> None:
    linears, tensors = projections(tmp_path)
    for name, weight in linears.items():
        parts = gptq(rounded(weight, GROUP), stored)
        tensors |= {name.removesuffix("weight") + part: t for part, t in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": named}
    edit_config(tmp_path, quantization_config=config)
    with pytest.raises(
        CheckpointError, match=f"INT4 weights are {steps} steps off zero on average"
    ):
        load_target(tmp_path, 16)
    right = config | {"checkpoint_format": "gptq" if stored == 1 else "gptq_v2"}
    edit_config(tmp_path, quantization_config=right)
    load_target(tmp_path, 16)


@pytest.mark.parametrize("place", ["compression_config", "text_config", "nested"])
def test_a_quantization_config_is_found_wherever_writers_put_it(
    tmp_path: Path, llama: PreTrainedModel, place: str
) -> None:
    values = save_gptq(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    said = config.pop("quantization_config")
    spelled = {
        "compression_config": {"compression_config": said},
        "text_config": {"text_config": {"quantization_config": said}},
        "nested": {"quantization_config": {"quantization_config": said, "sparsity_config": {}}},
    }
    write_config(tmp_path, config | spelled[place])
    assert_computes(tmp_path, llama, values, 14)


def metadata_of(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def test_a_weight_whose_shape_differs_from_the_config_is_refused(
    tmp_path: Path, model: Gemma4ForCausalLM
) -> None:
    save_text_layout(model, tmp_path)
    save_awq(tmp_path)
    edit_config(tmp_path, intermediate_size=104)
    with pytest.raises(CheckpointError, match=r"as \[64, 12\] words, config.json says \[104, 64"):
        load_target(tmp_path, 16)
