"""Experts: which are taken, and what they compute, compared with transformers."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize, quantize
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export import ExportSpec
from eagle_aot.export.resolution import check_experts
from eagle_aot.targets import get_target, load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.experts import (
    ExpertChoice,
    ExpertLinears,
    Experts,
    ExpertsConfig,
    Int4ExpertLinears,
    random_experts,
)
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.int4.quantise import SCHEMES, quantise
from eagle_aot.targets.int4.weight import Int4Format
from support.checkpoint_edits import edit_config, edit_tensors
from support.files.compressed_tensors import pack, unpack
from support.files.gguf import GgufModel
from support.gemma_oracle import (
    EXPERTS,
    oracle_states,
    random_gemma,
    random_tokens,
    run_in_chunks,
)
from support.golden_cases import golden_case, relative_error
from support.pre_norm_oracle import random_pre_norm, save, stacked

of_qwen = partial(random_pre_norm, "qwen3_moe")
ROUTER = "model.layers.0.mlp.gate.weight"


@pytest.mark.parametrize("name", ["moe/qwen3_moe", "moe/gemma4_moe"])
def test_tokens_take_the_experts_that_they_take_in_transformers(name: str) -> None:
    directory, case = golden_case(name)
    target, taken = load_target(directory, 80), list[Tensor]()
    assert isinstance(target, nn.Module)
    for module in target.modules():
        if isinstance(module, Experts):
            module.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[2]))
    run_in_chunks(target, case["input.tokens"][None], [23])
    layers = len(taken) // 2  # two chunks
    ids = torch.stack([torch.cat(taken[layer::layers]) for layer in range(layers)])
    assert torch.equal(ids, case["expected.experts"][:layers])


@pytest.mark.parametrize("norm_topk_prob", [True, False])
@pytest.mark.parametrize(("count", "top_k"), [(8, 3), (128, 8), (16, 16), (200, 2)])
def test_routers_choose_as_transformers_does_among_equal_scores(
    count: int, top_k: int, norm_topk_prob: bool
) -> None:
    torch.manual_seed(count)
    sizes = {"num_experts": count, "num_experts_per_tok": top_k, "hidden_size": 8}
    router = Qwen3MoeTopKRouter(Qwen3MoeConfig(norm_topk_prob=norm_topk_prob, **sizes))
    router.weight.data = torch.randint(-1, 2, (count, 8)).float()
    rows = torch.randint(-1, 2, (64, 8)).float()
    scores, expected_weights, expected = router(rows)
    config = ExpertsConfig(
        num_experts=count, top_k=top_k, intermediate_size=1, norm_topk_prob=norm_topk_prob
    )
    weights, ids = ExpertChoice(config)(scores)
    assert torch.equal(ids, expected) and torch.equal(weights, expected_weights)
    chosen = scores.gather(1, ids)
    equal = [(values == chosen[:, -1:]).sum(1) for values in (scores, chosen)]
    assert count == top_k or bool((equal[0] > equal[1]).any()), "no row had a choice"


VARIANTS: list[dict[str, Any]] = [
    {"norm_topk_prob": True},
    {"decoder_sparse_step": 2, "mlp_only_layers": []},
    {"attention_bias": True, "num_experts_per_tok": 6},
    {"num_experts_per_tok": 1, "norm_topk_prob": True, "tie_word_embeddings": False},
]
OF_GEMMA: list[dict[str, Any]] = [{}, {"top_k_experts": 6}, {"attention_k_eq_v": False}]


@pytest.mark.parametrize("changes", [*VARIANTS, *OF_GEMMA])
def test_variants_match_transformers_in_a_prompt_and_in_24_new_tokens(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    is_gemma, tokens = changes in OF_GEMMA, random_tokens(30)
    model: Any = random_gemma(**EXPERTS | changes) if is_gemma else of_qwen(**changes)
    target = load_target(save(model, tmp_path), 64)
    model.generation_config.eos_token_id = None
    seen = torch.ones_like(tokens)  # also what has the id of padding
    expected = model.generate(tokens, attention_mask=seen, max_new_tokens=24, do_sample=False)
    logits, _ = run_in_chunks(target, expected, [8, 8, 8, 6, *[1] * 24])
    assert torch.equal(logits[29:-1].argmax(-1), expected[0, 30:])
    assert relative_error(logits, oracle_states(model, expected)[0]) < 2e-5


SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 96}


def values_of(path: Path, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Return the linears of layers [N, K], experts stacked, with `change` applied to each."""
    values = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        if ".experts." in name and tensor.ndim == 3:
            parts = [[change(half) for half in expert.chunk(2 if "gate" in name else 1)]
                     for expert in tensor]  # fmt: skip
            values[name] = torch.stack([torch.cat(part) for part in parts])
        elif name.endswith("_proj.weight"):
            values[name] = change(tensor)
    return stacked(values)


def assert_computes(target: Any, model: Any, values: dict[str, Tensor]) -> None:
    """Check a target against the model with these values."""
    stacks = [m for m in target.modules() if isinstance(m, Int4ExpertLinears)]
    assert len(stacks) == 2 * sum(isinstance(m, Experts) for m in target.modules())
    tokens = random_tokens(30)
    before = oracle_states(model, tokens)[0]
    assert not model.load_state_dict(values, strict=False).unexpected_keys
    expected = oracle_states(model, tokens)[0]
    assert relative_error(expected, before) > 1e-3
    assert relative_error(run_in_chunks(target, tokens, [8])[0], expected) < 2e-5


@pytest.mark.parametrize("make", [random_gemma, of_qwen])
def test_dense_experts_are_quantised_on_load(tmp_path: Path, make: Callable[..., Any]) -> None:
    """Stacked in the file or one by one; K need not be a multiple of 256."""
    model, scheme = make(**(EXPERTS if make is random_gemma else {}) | SIZES), SCHEMES["int4-g32"]
    checkpoint = Checkpoint(save(model, tmp_path), scheme)
    target = get_target("auto").load(checkpoint, torch.float32, CacheSpec(32, torch.float32))
    values = values_of(tmp_path, lambda weight: quantise(weight, scheme, torch.float32).dense())
    assert_computes(target, model, values)


@pytest.mark.parametrize("make", [random_gemma, of_qwen])
def test_experts_in_compressed_tensors_are_those_of_the_library(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    """With tensors for each expert, as published INT4 checkpoints have them."""
    model = make(**(EXPERTS if make is random_gemma else {}) | SIZES)
    tensors, values = load_file(save(model, tmp_path) / "model.safetensors"), {}
    for name in [name for name in tensors if ".experts." in name and tensors[name].ndim == 3]:
        owner, _, leaf = name.rpartition(".")
        for expert, weight in enumerate(tensors.pop(name)):
            parts = ["gate_proj", "up_proj"] if leaf == "gate_up_proj" else [leaf]
            for part, rows in zip(parts, weight.chunk(len(parts)), strict=True):
                tensors[f"{owner}.{expert}.{part}.weight"] = rows.clone()
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        packed = pack(weight := tensors.pop(name), 32, False, torch.float32)
        values[name] = unpack(packed, 32, False)
        assert values[name].shape == weight.shape
        tensors |= {f"{name.removesuffix('weight')}{part}": t for part, t in packed.items()}
    save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "model.safetensors")
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
    group = {"targets": ["Linear"], "weights": weights | {"group_size": 32}}
    edit_config(tmp_path, quantization_config={
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": group},
    })  # fmt: skip
    assert_computes(load_target(tmp_path, 32), model, stacked(values))


GGUF_TYPES = {
    "gate_up_proj": Type.Q4_0,
    "gate_proj": Type.Q4_0,
    "up_proj": Type.Q4_1,
    "_proj": Type.Q8_0,
}


def write_gguf(directory: Path, architecture: str) -> dict[str, Tensor]:
    """Replace the weights of a checkpoint by a GGUF file; return the values of linears by name."""
    tensors = load_file(directory / "model.safetensors")
    file, values = GgufModel(directory / "model.gguf", architecture, 6), dict[str, Tensor]()
    names = [name for name in tensors if ".experts." not in name]
    stacks = {re.sub(r"experts\.\d+", "experts", name) for name in tensors} - set(names)
    for name in [*names, *sorted(stacks)]:
        kind = next((kind for part, kind in GGUF_TYPES.items() if part in name), Type.F32)
        experts = [name.replace("experts", f"experts.{e}") for e in range(6)]
        stored = name in stacks and name not in tensors
        parts = {part: tensors[part] for part in (experts if stored else [name])}
        file.add(name, torch.stack([*parts.values()]) if stored else tensors[name], kind)
        for part, weight in parts.items() if kind != Type.F32 else ():
            values[part] = torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))
    file.close()
    (directory / "model.safetensors").unlink()
    return values


def test_experts_of_a_gguf_file_are_those_of_the_gguf_package(tmp_path: Path) -> None:
    model = of_qwen(**SIZES | {"tie_word_embeddings": False, "mlp_only_layers": []})
    save(model, tmp_path)
    values = write_gguf(tmp_path, "qwen3moe")
    target = load_target(tmp_path, 32)
    assert isinstance(target, nn.Module)
    kinds = [type(m) for m in target.modules() if isinstance(m, ExpertLinears | Int4ExpertLinears)]
    assert kinds == 4 * [Int4ExpertLinears, ExpertLinears]
    assert not model.load_state_dict(stacked(values), strict=False).unexpected_keys
    tokens = random_tokens(30)
    logits, _ = run_in_chunks(target, tokens, [8])
    assert relative_error(logits, oracle_states(model, tokens)[0]) < 2e-5


def test_experts_of_gemma_4_in_a_gguf_file_are_those_of_the_gguf_package(tmp_path: Path) -> None:
    """Gate and up are one tensor, and the scales of experts stand beside `down_proj`."""
    model = random_gemma(**EXPERTS | SIZES)
    for name, tensor in model.named_parameters():
        if name.endswith("scale"):
            tensor.data = 0.5 + torch.rand_like(tensor)
    save(model, tmp_path)
    values = write_gguf(tmp_path, "gemma4")
    target = load_target(tmp_path, 32)
    assert isinstance(target, nn.Module)
    kinds = {type(m) for m in target.modules() if isinstance(m, ExpertLinears | Int4ExpertLinears)}
    assert kinds == {Int4ExpertLinears, ExpertLinears}
    assert not model.load_state_dict(values, strict=False).unexpected_keys
    tokens = random_tokens(30)
    logits, _ = run_in_chunks(target, tokens, [8])
    assert relative_error(logits, oracle_states(model, tokens)[0]) < 2e-5


def test_quantized_experts_in_one_tensor_are_refused_by_name(tmp_path: Path) -> None:
    save(random_gemma(**EXPERTS), tmp_path)
    name = "model.layers.0.experts.gate_up_proj"
    packed = {f"{name}_packed": torch.zeros(6, 64, 4, dtype=torch.int32)}
    edit_tensors(tmp_path, lambda tensors: (tensors.pop(name), tensors.update(packed)))
    with pytest.raises(UnsupportedError, match=f"{name}_packed holds quantized experts in one"):
        load_target(tmp_path, 16)


def test_a_quantized_router_is_refused_by_name(tmp_path: Path) -> None:
    directory = save(of_qwen(num_experts=8), tmp_path)
    words = {ROUTER.replace("weight", "qweight"): torch.zeros(32, 1, dtype=torch.int32),
             ROUTER.replace("weight", "qzeros"): torch.zeros(1, 1, dtype=torch.int32),
             ROUTER.replace("weight", "scales"): torch.ones(1, 8)}  # fmt: skip
    edit_tensors(directory, lambda tensors: (tensors.pop(ROUTER), tensors.update(words)))
    edit_config(directory, quantization_config={
        "quant_method": "awq", "bits": 4, "group_size": 32,
    })  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"mlp\.gate is quantized: routers are read dense"):
        load_target(directory, 16)


def test_a_rows_bits_do_not_depend_on_rows_that_share_its_experts() -> None:
    torch.manual_seed(0)
    config = ExpertsConfig(num_experts=6, top_k=2, intermediate_size=24)
    experts = Experts(config, 16, "silu", torch.float32)
    gate_up, down = torch.randn(6, 48, 16), torch.randn(6, 16, 24)
    experts.gate_up_proj, experts.down_proj = ExpertLinears(gate_up), ExpertLinears(down)
    rows, scores = torch.randn(9, 16), torch.randn(9, 6)
    scores[1], scores[2] = scores[0], -scores[0]  # the same experts, and none of them
    weights, ids = ExpertChoice(config)(scores)
    assert ids[0].equal(ids[1]) and not set(ids[0].tolist()) & set(ids[2].tolist())
    together = experts(rows, weights, ids)
    for i in range(len(rows)):
        alone = experts(rows[i : i + 1], weights[i : i + 1], ids[i : i + 1])
        assert torch.equal(alone[0], together[i])
        gate, up = (gate_up[ids[i]].double() @ rows[i].double()).chunk(2, 1)
        outputs = down[ids[i]].double() @ (nn.functional.silu(gate) * up).unsqueeze(-1)
        exact = (outputs.squeeze(-1) * weights[i].double().unsqueeze(-1)).sum(0)
        torch.testing.assert_close(together[i].double(), exact, rtol=1e-5, atol=1e-4)


def test_int4_experts_compute_as_their_dense_weights() -> None:
    torch.manual_seed(0)
    int4 = random_experts((5, 12, 64), Int4Format(32), torch.float32)
    assert isinstance(int4, Int4ExpertLinears)
    dense, x = int4.dense(), torch.randn(64)
    assert int4.sizes == dense.sizes == (5, 12, 64)
    for expert in range(5):
        chosen = torch.tensor([expert])
        torch.testing.assert_close(int4(x, chosen), dense(x, chosen))
    assert not torch.equal(dense.weight[0], dense.weight[1])


@pytest.mark.parametrize(("changes", "message"), [
    ({"num_experts_per_tok": 7}, "6 experts, a token takes 7: expected 7 to 1024"),
    ({"num_local_experts": "6"}, "'6' experts, a token takes 2"),
    ({"mlp_only_layers": "2"}, "mlp_only_layers is '2', expected integers"),
    ({"moe_intermediate_size": 48}, r"experts.0.gate_proj.weight is \[32, 32\], config.json says"),
    ({"num_local_experts": 7}, r"mlp.gate.weight is \[6, 32\], config.json says \[7, 32\]"),
])  # fmt: skip
def test_a_config_that_contradicts_itself_or_the_experts_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(of_qwen(), tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_target(tmp_path, 16)


def test_an_expert_more_than_the_config_says_is_named(tmp_path: Path) -> None:
    save(of_qwen(), tmp_path)
    name = "model.layers.0.mlp.experts.6.up_proj.weight"
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: torch.zeros(32, 32)}))
    with pytest.raises(CheckpointError, match=r"unknown tensors .*experts.6.up_proj.weight"):
        load_target(tmp_path, 16)


def test_dense_experts_are_refused_where_no_kernel_multiplies_by_them(tmp_path: Path) -> None:
    save(of_qwen(), tmp_path)
    places: list[dict[str, Any]] = [
        {"target_model": "qwen3-30b-a3b"},
        {"target_model": "auto", "target_dir": tmp_path},
    ]
    for place in places:
        assert check_experts(ExportSpec(**place, backend="xnnpack"))
        with pytest.raises(
            UnsupportedError, match=r"--backend cuda: .* dense experts, .* xnnpack$"
        ):
            check_experts(ExportSpec(**place, backend="cuda"))
        for options in ({"quantize": "int4-g32"}, {"load_format": "dummy"}):
            assert check_experts(ExportSpec(**place | options, backend="cuda"))
    assert not check_experts(ExportSpec(target_model="qwen3-8b", backend="cuda"))
