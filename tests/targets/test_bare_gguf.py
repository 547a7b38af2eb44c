"""A GGUF file without a config.json: its config, stop ids and tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize, quantize
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from eagle_aot.common.errors import CheckpointError, CheckpointNotFoundError, UnsupportedError
from eagle_aot.export.loading.tokenizer import convert_tokenizer
from eagle_aot.targets import load_target
from eagle_aot.targets.bare_gguf import read_bare
from eagle_aot.targets.checkpoint import Checkpoint, tokenizer_directory
from support.files.gguf import SIZE, GgufModel
from support.files.int4 import count_int4_linears
from support.gemma_oracle import VOCAB, oracle_states, random_tokens, run_in_chunks, write_config
from support.golden_cases import relative_error
from support.pre_norm_oracle import LLAMA3_ROPE, random_pre_norm

GEOMETRY: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "rms_norm_eps": 2.0**-17}
LLAMA3 = LLAMA3_ROPE | {"original_max_position_embeddings": 8192, "rope_theta": 5e5, "factor": 8.0}


def as_llama_cpp_orders(model: PreTrainedModel, name: str, weight: Tensor) -> Tensor:
    """Interleave the halves of Llama's heads in q and k weights [N, K]; others stay."""
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    count = next((n for leaf, n in heads.items() if leaf in name), None)
    if count is None or model.config.model_type != "llama":
        return weight
    return weight.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)


def start_gguf(path: Path, model: PreTrainedModel) -> tuple[GgufModel, dict[str, Tensor]]:
    """Write the geometry and weights of a model, linears as Q4_1.

    Returns the open file and the values of the weights after quantisation, by name.
    """
    path.parent.mkdir(exist_ok=True)
    file = GgufModel(path, model.config.model_type, layers=model.config.num_hidden_layers)
    file.write_geometry(model.config)
    values: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        kind = Type.Q4_1 if name.endswith("_proj.weight") else Type.F32
        file.add(name, as_llama_cpp_orders(model, name, weight).contiguous(), kind)
        values[name] = torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind).copy())
    return file, values


def add_key(file: GgufModel, key: str, value: str | bool | float) -> None:
    writer = file.writer
    match value:
        case str():
            writer.add_string(key, value)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)


def write_bare(path: Path, adds_bos: bool | None = False, pre: str = "gpt-2") -> Path:
    file, _ = start_gguf(path, random_pre_norm("llama", vocab_size=SIZE, **GEOMETRY))
    file.write_tokenizer(SIZE, adds_bos, pre=pre)
    file.close()
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bare(tmp_path_factory.mktemp("bare") / "model.gguf")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("family", "biased"), [("llama", False), ("llama", True), ("qwen2", True), ("qwen3", False)]
)
def test_a_bare_gguf_computes_what_transformers_computes(
    tmp_path: Path, family: str, biased: bool, tied: bool
) -> None:
    changes = {"tie_word_embeddings": tied, "attention_bias": biased}
    model = random_pre_norm(family, **GEOMETRY | changes)
    file, values = start_gguf(tmp_path / "model.gguf", model)
    file.close()
    target = load_target(tmp_path / "model.gguf", 32)
    assert count_int4_linears(target) == 28
    model.load_state_dict(values, strict=False)
    tokens = random_tokens(30)
    logits, _ = run_in_chunks(target, tokens, [8])
    assert relative_error(logits, oracle_states(model, tokens)[0]) < 2e-5


def test_rope_scaling_is_recovered_from_llama_3s_table_of_frequencies(tmp_path: Path) -> None:
    model = random_pre_norm("llama", **GEOMETRY, rope_parameters=LLAMA3)
    file, _ = start_gguf(tmp_path / "model.gguf", model)
    plain = 5e5 ** (-torch.arange(0, 16, 2) / 16)
    table = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert (table > 1).any()
    file.add_bytes("rope_freqs.weight", table, Type.F32)
    file.close()
    values = Checkpoint(tmp_path).config.section("rope_parameters").values
    assert dict(values) == pytest.approx(LLAMA3)


def test_frequencies_scaled_in_another_way_are_refused(tmp_path: Path) -> None:
    file, _ = start_gguf(tmp_path / "model.gguf", random_pre_norm("llama", **GEOMETRY))
    file.add_bytes("rope_freqs.weight", np.linspace(1, 3, 8, dtype=np.float32), Type.F32)
    file.close()
    with pytest.raises(
        UnsupportedError, match=r"model\.gguf: its rotary frequencies are not scaled"
    ):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(("key", "value"), [
    ("rope.scaling.type", "yarn"), ("attention.sliding_window", 64), ("rope.scale_linear", 4.0),
    ("rope.scaling.factor", 4.0), ("rope.scaling.attn_factor", 2.0), ("attention.causal", False),
    ("attention.value_length", 8), ("expert_count", 4), ("logit_scale", 0.5),
])  # fmt: skip
def test_metadata_that_changes_the_math_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    file, _ = start_gguf(tmp_path / "model.gguf", random_pre_norm("qwen3", **GEOMETRY))
    add_key(file, f"qwen3.{key}", value)
    file.close()
    message = rf"model\.gguf: qwen3\.{key} is {value}: put its model's config\.json"
    with pytest.raises(UnsupportedError, match=message):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(("key", "value"), [
    ("rope.scaling.type", "none"), ("rope.scale_linear", 1.0), ("attention.causal", True),
    ("attention.value_length", 16), ("expert_count", 0),
])  # fmt: skip
def test_metadata_that_changes_nothing_is_accepted(tmp_path: Path, key: str, value: Any) -> None:
    file, _ = start_gguf(tmp_path / "model.gguf", random_pre_norm("qwen3", **GEOMETRY))
    add_key(file, f"qwen3.{key}", value)
    file.close()
    assert Checkpoint(tmp_path).config.count("vocab_size") == VOCAB


def test_partly_rotated_heads_are_refused(tmp_path: Path) -> None:
    model = random_pre_norm("llama", **GEOMETRY)
    file = GgufModel(tmp_path / "model.gguf", "llama", layers=4)
    file.write_geometry(model.config)
    file.writer.add_rope_dimension_count(8)
    file.close()
    with pytest.raises(UnsupportedError, match="rotates 8 of 16 elements per head"):
        Checkpoint(tmp_path)


def test_a_file_without_the_epsilon_of_its_norms_is_refused(tmp_path: Path) -> None:
    GgufModel(tmp_path / "model.gguf", "llama", layers=4).close()
    with pytest.raises(CheckpointError, match=r"llama\.attention\.layer_norm_rms_epsilon is miss"):
        Checkpoint(tmp_path)


def test_an_architecture_with_incomplete_metadata_needs_its_config(tmp_path: Path) -> None:
    GgufModel(tmp_path / "model.gguf", "gemma4").close()
    with pytest.raises(UnsupportedError, match=r"gemma4 does not say all .*: put its model"):
        Checkpoint(tmp_path)
    write_config(tmp_path, {})
    assert list(Checkpoint(tmp_path).names()) == []


def test_a_directory_with_one_gguf_is_read_like_the_file(bare: Path) -> None:
    (bare.parent / "README.md").write_text("a model")
    (bare.parent / "mmproj-model-f16.gguf").write_bytes(b"not read")
    by_file, by_directory = Checkpoint(bare), Checkpoint(bare.parent)
    assert dict(by_file.config.values) == dict(by_directory.config.values)
    assert by_file.files() == by_directory.files() == [bare]
    assert by_file.config.values["eos_token_id"] == [1]
    assert by_file.config.count("max_position_embeddings") == 128


def test_a_gguf_next_to_a_config_json_is_not_bare(bare: Path, tmp_path: Path) -> None:
    """Other files in the directory are not read: no tokenizer, and no code that they name."""
    (tmp_path / "model.gguf").symlink_to(bare)
    settings = {"auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.json").write_text("{")
    assert convert_tokenizer(tokenizer_directory(tmp_path)).encode("the", raw=True)
    write_config(tmp_path, {"model_type": "mine"})
    assert Checkpoint(tmp_path).config.text("model_type") == "mine"
    assert tokenizer_directory(tmp_path) == tmp_path


def test_the_tokenizer_is_written_as_transformers_reads_it(bare: Path) -> None:
    directory = tokenizer_directory(bare)
    assert {p.name for p in directory.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    theirs = AutoTokenizer.from_pretrained(bare.parent, gguf_file=bare.name)
    ours = convert_tokenizer(directory)
    text = "the other one, naïve\n  99 bottles</s>"
    assert ours.encode(text, raw=True) == theirs(text).input_ids
    turn = [{"role": "user", "content": text}]
    expected = theirs.apply_chat_template(turn, add_generation_prompt=True).input_ids
    assert ours.encode(text) == expected
    assert ours.decode(theirs(text).input_ids) == text.removesuffix("</s>")


@pytest.mark.parametrize(("adds_bos", "pre", "expected"), [
    (False, "gpt-2", False), (None, "gpt-2", False), (True, "gpt-2", True),
    (None, "llama-bpe", True), (False, "llama-bpe", False),
])  # fmt: skip
def test_a_bos_token_is_added_where_the_file_or_its_pretokeniser_says_so(
    tmp_path: Path, adds_bos: bool | None, pre: str, expected: bool
) -> None:
    tokenizer = convert_tokenizer(
        tokenizer_directory(write_bare(tmp_path / "model.gguf", adds_bos, pre))
    )
    assert tokenizer.adds_bos == expected
    raw, turn = tokenizer.encode("the", raw=True), tokenizer.encode("the")
    assert (raw[0] == 0) == expected and raw.count(0) == expected
    assert turn.count(0) == 2 and turn[0] == 0, "the template's own, no third"


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_tokenizer_adds_a_bos_token_to_a_template_without_one(
    tmp_path: Path, adds_bos: bool
) -> None:
    file, _ = start_gguf(tmp_path / "model.gguf", random_pre_norm("llama", **GEOMETRY))
    file.write_tokenizer(SIZE, adds_bos, template="{{ messages[0].content }}")
    file.close()
    tokenizer = convert_tokenizer(tokenizer_directory(tmp_path))
    bare = tokenizer.ids("the", add_special_tokens=False)
    assert tokenizer.encode("the") == ([0, *bare] if adds_bos else bare)


def test_eos_eot_and_eom_tokens_are_stop_ids(tmp_path: Path) -> None:
    model = random_pre_norm("llama", **GEOMETRY)
    file, _ = start_gguf(tmp_path / "model.gguf", model)
    file.write_tokenizer(SIZE)
    file.writer.add_eot_token_id(7)
    file.writer.add_uint32("tokenizer.ggml.eom_token_id", 1)
    file.close()
    assert read_bare(tmp_path / "model.gguf").stop_ids == [1, 7]
    stops = json.loads((tokenizer_directory(tmp_path) / "generation_config.json").read_text())
    assert stops == {"eos_token_id": [1, 7]}


@pytest.mark.parametrize("key", ["eot_token_id", "eom_token_id", "fim_pre_token_id"])
@pytest.mark.parametrize("number", [-1, SIZE])
def test_special_tokens_outside_the_vocabulary_are_refused(
    tmp_path: Path, key: str, number: int
) -> None:
    file, _ = start_gguf(tmp_path / "model.gguf", random_pre_norm("llama", **GEOMETRY))
    file.write_tokenizer(SIZE)
    file.writer.add_int32(f"tokenizer.ggml.{key}", number)
    file.close()
    line = rf"model\.gguf: tokenizer\.ggml\.{key} is {number}: there are {SIZE} tokens"
    for read in (Checkpoint, tokenizer_directory):
        with pytest.raises(CheckpointError, match=line):
            read(tmp_path)


@pytest.mark.parametrize("key", ["feed_forward_length", "attention.head_count_kv"])
def test_sizes_of_each_layer_are_refused(tmp_path: Path, key: str) -> None:
    model = random_pre_norm("llama", **GEOMETRY)
    file = GgufModel(tmp_path / "model.gguf", "llama", layers=model.config.num_hidden_layers)
    file.write_geometry(model.config)
    file.writer.kv_data[0].pop(f"llama.{key}")
    file.writer.add_array(f"llama.{key}", [2, 4])
    file.close()
    with pytest.raises(UnsupportedError, match=rf"llama\.{key} is an array, one per layer, which"):
        Checkpoint(tmp_path)


def test_a_gguf_without_a_tokenizer_is_refused_when_the_tokenizer_is_needed(tmp_path: Path) -> None:
    file, _ = start_gguf(tmp_path / "model.gguf", random_pre_norm("llama", **GEOMETRY))
    file.close()
    assert Checkpoint(tmp_path).config.count("vocab_size") == VOCAB
    with pytest.raises(CheckpointError, match=r"model\.gguf: holds no tokenizer: put its model"):
        tokenizer_directory(tmp_path)


def test_an_unknown_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    file, _ = start_gguf(tmp_path / "model.gguf", random_pre_norm("llama", **GEOMETRY))
    file.writer.add_tokenizer_model("rwkv")
    file.writer.add_token_list(["a", "b"])
    file.close()
    with pytest.raises(UnsupportedError, match=r"model\.gguf: tokenizer 'rwkv': known are gpt2"):
        tokenizer_directory(tmp_path)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for size in (96, 128):
        model = random_pre_norm("llama", **(GEOMETRY | {"intermediate_size": size}))
        start_gguf(path, model)[0].close()
        assert Checkpoint(path).config.count("intermediate_size") == size


def test_a_directory_with_two_ggufs_is_refused(bare: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).symlink_to(bare)
    with pytest.raises(CheckpointNotFoundError, match=r"2 GGUF files and no config\.json: name on"):
        Checkpoint(tmp_path)
    assert Checkpoint(tmp_path / "b.gguf").files() == [tmp_path / "b.gguf"]
