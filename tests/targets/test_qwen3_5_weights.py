"""A Qwen3.5 in every weight format, with its publishers' names, compared with transformers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize, quantize
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from eagle_aot.common.errors import CheckpointError
from eagle_aot.export.drafters.mtp.checkpoint import load_mtp, read_files
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from support.checkpoint_edits import edit_config
from support.files.compressed_tensors import pack, scheme_with, unpack
from support.files.gguf import GgufModel
from support.files.int4 import GROUP, Tensors, awq, count_int4_linears, gptq, rounded
from support.gemma_oracle import oracle_states, random_tokens, run_in_chunks
from support.golden_cases import relative_error
from support.heads.mtp import random_mtp, save_mtp
from support.random_pair import qwen3_5

LINEAR = re.compile(r"_proj(_qkv|_z)?\.weight$")
"""What quantizers take: not the decays and rates of each head."""
LINEARS = 19  # of three layers: three of each delta net, four that attend, three of each MLP
KEY_HEADS, HEADS, VALUE_DIM, LAYERS = 2, 4, 32, 3
LENGTH = 48


@pytest.fixture(scope="module")
def model() -> Qwen3_5ForCausalLM:
    torch.manual_seed(0)
    return qwen3_5()


def save_awq(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    grid = rounded(weight, GROUP)
    return awq(grid), grid.dense


def save_gptq(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    grid = rounded(weight, GROUP, act_order="down_proj" in name)
    return gptq(grid, 1), grid.dense


def save_compressed(name: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    packed = pack(weight, GROUP, True, torch.float16)
    return packed, unpack(packed | {"weight_scale": packed["weight_scale"].float()}, GROUP, True)


SCHEME = scheme_with(GROUP, True).weights
assert SCHEME is not None
CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "gptq": {"bits": 4, "group_size": GROUP, "desc_act": True, "sym": False},
    "compressed-tensors": {
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": SCHEME.model_dump(mode="json")}
        },
        "ignore": ["re:.*in_proj_[ab]$", "re:.*visual.*", "lm_head"],
    },
}
WRITERS = dict(zip(CONFIGS, (save_awq, save_gptq, save_compressed), strict=True))


@pytest.mark.parametrize("method", CONFIGS)
def test_int4_of_a_model_that_also_reads_images_is_read(
    tmp_path: Path, model: Qwen3_5ForCausalLM, method: str
) -> None:
    model.save_pretrained(tmp_path)
    tensors, values = load_file(tmp_path / "model.safetensors"), {}
    for name in filter(LINEAR.search, list(tensors)):
        parts, values[name] = WRITERS[method](name, tensors.pop(name))
        tensors |= {f"{name.removesuffix('weight')}{part}": t for part, t in parts.items()}
    stored = {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}
    stored |= {"model.visual.merger.norm.bias": torch.ones(2), "mtp.norm.weight": torch.ones(2)}
    save_file({n: t.contiguous() for n, t in stored.items()}, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    whole = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    edit_config(tmp_path, quantization_config={"quant_method": method, **CONFIGS[method]})
    assert_computes(tmp_path, values, LINEARS)


def assert_computes(directory: Path, values: Tensors, linears: int) -> None:
    """Check the target in `directory` against the model with these weights, in chunks of both
    kinds."""
    torch.manual_seed(0)
    model = qwen3_5()
    assert not model.load_state_dict(values, strict=False).unexpected_keys
    target, tokens = load_target(directory, LENGTH), random_tokens(LENGTH)
    assert count_int4_linears(target) == linears
    logits, _ = run_in_chunks(target, tokens, [20, 5])
    assert relative_error(logits, oracle_states(model, tokens)[0]) < 2e-5


def tiled(tensor: Tensor, heads: int = HEADS) -> Tensor:
    """Put the rows of value heads in llama.cpp's order: the first of each key head, the second."""
    parts, each = tensor.split(len(tensor) // heads), heads // KEY_HEADS
    return torch.cat([parts[key * each + n] for n in range(each) for key in range(KEY_HEADS)])


def converted(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Return a tensor as llama.cpp's converter stores it, and the name by which the `gguf` package
    knows it, or the stored name."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return name, tensor + 1
    if name.endswith("A_log"):
        return f"blk.{name.split('.')[2]}.ssm_a", -torch.exp(tiled(tensor))
    if name.endswith("dt_bias"):
        return name.replace("dt_bias", "dt_proj.bias"), tiled(tensor)
    if "in_proj_qkv" in name or "conv1d" in name:
        rows = len(tensor) - HEADS * VALUE_DIM
        tensor = tensor.squeeze()
        return name, torch.cat((tensor[:rows], tiled(tensor[rows:])))
    if "in_proj" in name:
        return name, tiled(tensor)
    return name, tiled(tensor.t()).t().contiguous() if "linear_attn.out_proj" in name else tensor


OF_MTP = {
    "mtp.fc.": "blk.3.nextn.eh_proj.",
    "mtp.norm.": "blk.3.nextn.shared_head_norm.",
    "mtp.pre_fc_norm_embedding.": "blk.3.nextn.enorm.",
    "mtp.pre_fc_norm_hidden.": "blk.3.nextn.hnorm.",
}
"""llama.cpp's names. Other tensors of the layer have those of one more decoder layer."""


def save_gguf(directory: Path, kinds: Callable[[str], Type], **sizes: int) -> Tensors:
    """Replace the tensors of a checkpoint by a GGUF file; return their values by name."""
    path = directory / "model.safetensors"
    tensors, values = load_file(path), {}
    has_mtp = any(name.startswith("mtp.") for name in tensors)
    file = GgufModel(directory / "model.gguf", "qwen35", LAYERS + has_mtp)
    sizes = {"group_count": KEY_HEADS, "rank": HEADS, "inner": HEADS * VALUE_DIM} | sizes
    file.writer.add_ssm_group_count(sizes["group_count"])
    file.writer.add_ssm_time_step_rank(sizes["rank"])
    file.writer.add_ssm_inner_size(sizes["inner"])
    file.writer.add_ssm_state_size(16)
    if has_mtp:
        file.writer.add_nextn_predict_layers(1)
    for name, tensor in tensors.items():
        kind = kinds(name)
        stored, data = converted(name, tensor)
        if own := next((prefix for prefix in OF_MTP if name.startswith(prefix)), None):
            stored, data = name.replace(own, OF_MTP[own]), tensor + (".fc." not in name)
        stored = stored.replace("mtp.layers.0.", f"model.layers.{LAYERS}.")
        if stored.startswith("blk."):
            file.add_bytes(stored, quantize(data.numpy(), kind), kind)
        else:
            file.add(stored, data, kind)
        if kind != Type.F32:
            written = dequantize(quantize(tensor.numpy(), kind), kind)
            values[name] = torch.from_numpy(written.copy())
    file.close()
    path.unlink()
    return values


def dense(name: str) -> Type:
    return Type.F32


def in_blocks(name: str) -> Type:
    """Q4_0 and Q4_1 as INT4, Q8_0 as dense."""
    if not LINEAR.search(name):
        return Type.F32
    kinds = {"in_proj_z": Type.Q8_0, "out_proj": Type.Q4_1}
    return next((kind for part, kind in kinds.items() if part in name), Type.Q4_0)


@pytest.mark.parametrize(("kinds", "linears"), [(dense, 0), (in_blocks, LINEARS - 2)])
def test_a_gguf_is_read_with_its_heads_in_order(
    tmp_path: Path, model: Qwen3_5ForCausalLM, kinds: Callable[[str], Type], linears: int
) -> None:
    model.save_pretrained(tmp_path)
    assert_computes(tmp_path, save_gguf(tmp_path, kinds), linears)


def test_heads_in_llama_cpps_order_are_other_heads(
    tmp_path: Path, model: Qwen3_5ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader without this order would compute."""
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(f"{__name__}.tiled", lambda tensor, heads=HEADS: tensor)
    with pytest.raises(AssertionError, match=r"assert .* < 2e-05"):
        assert_computes(tmp_path, save_gguf(tmp_path, dense), 0)


def test_the_mtp_layer_of_a_gguf_is_that_of_the_checkpoint(
    tmp_path: Path, model: Qwen3_5ForCausalLM
) -> None:
    save_mtp(tmp_path, model, random_mtp(model))

    def read() -> tuple[Tensors, Tensors]:
        caches, files = CacheSpec(LENGTH, torch.float32), read_files(Checkpoint(tmp_path), LENGTH)
        target = load_target(tmp_path, LENGTH)
        assert isinstance(target, torch.nn.Module)
        layer = load_mtp(files, target, torch.float32, caches)
        return target.state_dict(), layer.state_dict()

    expected = read()
    save_gguf(tmp_path, dense)
    for tensors, wanted in zip(read(), expected, strict=True):
        assert tensors.keys() == wanted.keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, wanted[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("sizes", "line"), [
    ({"group_count": 3}, "4 value heads, 3 key heads"),
    ({"rank": 8}, "A_log: 4 rows, and 8 by the metadata"),
    ({"inner": 64}, "rows, and .* by the metadata"),
    ({"inner": 0}, "qwen35.ssm.inner_size is 0, expected an integer"),
])  # fmt: skip
def test_metadata_that_contradict_the_tensors_are_refused(
    tmp_path: Path, model: Qwen3_5ForCausalLM, sizes: dict[str, int], line: str
) -> None:
    model.save_pretrained(tmp_path)
    save_gguf(tmp_path, dense, **sizes)
    with pytest.raises(CheckpointError, match=line):
        load_target(tmp_path, LENGTH)
