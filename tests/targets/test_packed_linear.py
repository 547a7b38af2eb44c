"""Packed INT4 layers compute what unpacked ones do; reports on matrices match what is read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from hypothesis import settings
from safetensors.torch import load_file
from torch import nn

from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.layer import GatedMLP
from eagle_aot.targets.family import TINY_DIR
from eagle_aot.targets.int4 import (
    Int4Linear,
    Int4Weight,
    PackedGatedInt4,
    PackedInt4Linear,
    PackedProjections,
)
from eagle_aot.targets.stored_matrix import DENSE, INT4, count_by_format, stored_matrices
from eagle_aot.triton_kernels.int4_gemm import activate, pack
from support.files.gguf import GgufModel
from support.gemma_oracle import random_gemma, save_text_layout
from support.kernels.int4_cases import Case
from support.pre_norm_oracle import random_pre_norm, save

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, database=None)
GROUPS = [32, 64, 128, 256]
MULTIPROCESSORS = [1, 132]  # K whole, K split


def weight_of(case: Case) -> Int4Weight:
    return Int4Weight(*case.weight())


def layer(weight: Int4Weight) -> Int4Linear:
    return Int4Linear(weight, torch.bfloat16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("symmetric", [True, False])
def test_packing_on_a_gpu_equals_packing_on_the_host(symmetric: bool) -> None:
    weight = weight_of(Case(1000, 1120, 32, symmetric))
    packed, expected = weight.pack(), pack(weight.qdata, weight.scale, weight.zero_point)
    for name in ("codes", "scales", "zeros"):
        ours, theirs = getattr(packed, name), getattr(expected, name)
        assert ours is theirs is None or (ours.is_cpu and torch.equal(ours, theirs))


@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
@pytest.mark.parametrize("m", [1, 4, 5, 40])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", GROUPS)
def test_a_packed_linear_computes_what_the_linear_does(
    group: int, symmetric: bool, m: int, multiprocessors: int
) -> None:
    case = Case(150, 1280, group, symmetric)
    linear, x = layer(weight_of(case)), case.rows(m)
    packed = PackedInt4Linear(linear.weight, multiprocessors)
    assert (packed.splits > 1) == (multiprocessors > 1)
    assert torch.equal(packed(x), linear(x))
    assert torch.equal(packed.dense().weight, linear.dense().weight)


@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
@pytest.mark.parametrize("m", [1, 8, 40])
@pytest.mark.parametrize("symmetric", [(True, True, True), (True, False, True), (False, False)])
def test_packed_projections_compute_what_separate_linears_do(
    symmetric: Sequence[bool], m: int, multiprocessors: int
) -> None:
    """Some weights may have no zero points, and rows may not fill a tile."""
    rows = (200, 37, 64)
    cases = [Case(n, 512, 64, kind) for n, kind in zip(rows, symmetric, strict=False)]
    linears, x = [layer(weight_of(case)) for case in cases], cases[0].rows(m)
    packed = PackedProjections([linear.weight for linear in linears], multiprocessors)
    assert (packed.zeros is None) == all(symmetric)
    for output, linear in zip(packed(x), linears, strict=True):
        assert torch.equal(output, linear(x))


@pytest.mark.parametrize("multiprocessors", MULTIPROCESSORS)
@pytest.mark.parametrize("m", [1, 8, 40])
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
@pytest.mark.parametrize(("rows", "group"), [(8, 32), (104, 64), (128, 256)])
def test_a_packed_gated_pair_computes_what_separate_linears_do(
    rows: int, group: int, activation: str, m: int, multiprocessors: int
) -> None:
    gate_case, up_case = Case(rows, 512, group), Case(rows, 512, group, symmetric=True)
    gate, up = layer(weight_of(gate_case)), layer(weight_of(up_case))
    x = gate_case.rows(m) / 100  # so that the activation is neither 0 nor its argument
    packed = PackedGatedInt4(gate.weight, up.weight, activation, multiprocessors)
    output, expected = packed(x), activate(gate(x), activation) * up(x)
    assert output.shape == (1, m, rows) and torch.equal(output, expected)


@pytest.mark.parametrize("digits", [1, 2])
def test_columns_in_another_order_give_the_dense_weights_product(digits: int) -> None:
    case = Case(150, 512, 64)
    order = torch.randperm(512 // digits, generator=torch.Generator().manual_seed(0))
    weight = replace(weight_of(case), digits=digits, order=order)
    linear, x = layer(weight), case.rows(3)[..., : 512 // digits]
    exact = Int4Linear(weight, torch.float32)
    torch.testing.assert_close(exact(x.float()), exact.dense()(x.float()), rtol=1e-4, atol=1e-3)
    packed = PackedInt4Linear(linear.weight, 132)
    assert torch.equal(packed.dense().weight, linear.dense().weight)
    assert torch.equal(packed(x), layer(replace(weight, order=None))(x[..., order]))


def test_linears_are_fused_only_if_their_columns_have_one_order() -> None:
    torch.manual_seed(0)
    orders = [torch.randperm(512) for _ in range(2)]
    gate, up = (weight_of(Case(128, 512, 32, symmetric)) for symmetric in (True, False))
    x = Case(128, 512, 32).rows(4) / 100
    for first, second in ((orders[0], orders[0]), (orders[0], orders[1]), (orders[0], None)):
        gate_proj = layer(replace(gate, order=first))
        up_proj = layer(replace(up, order=second))
        mlp = GatedMLP(gate_proj, up_proj, nn.Identity(), "silu")
        expected = mlp(x)
        mlp.fuse_linears(132)
        assert (mlp.fused is not None) == (first is second)
        assert torch.equal(mlp(x), expected)


@pytest.mark.parametrize("is_dense", [False, True])
def test_the_order_of_down_proj_is_folded_into_the_rows_of_gate_and_up(is_dense: bool) -> None:
    torch.manual_seed(0)
    gate, up, down = (layer(weight_of(Case(n, k, 32))) for n, k in ((256, 64),) * 2 + ((64, 256),))
    down.order = torch.randperm(256)
    x = Case(256, 64, 32).rows(4) / 100
    mlp = GatedMLP(gate.dense() if is_dense else gate, up, down, "silu")
    expected = mlp(x)
    mlp.fold_column_order()
    assert down.order is None and torch.equal(mlp(x), expected)


def gguf(directory: Path) -> Path:
    """Write a Qwen3 checkpoint with another format in each kind of linear."""
    model = random_pre_norm(
        "qwen3", hidden_size=256, intermediate_size=256, head_dim=64, tie_word_embeddings=False
    )
    save(model, directory)
    kinds = {"q_proj": Type.Q4_0, "k_proj": Type.Q4_1, "v_proj": Type.Q8_0, "o_proj": Type.Q5_1}
    kinds |= {"lm_head": Type.Q4_0, "embed_tokens": Type.Q4_0}
    file = GgufModel(directory / "model.gguf", "qwen3", layers=4)
    for name, weight in load_file(directory / "model.safetensors").items():
        kind = next((kind for leaf, kind in kinds.items() if leaf in name), Type.F32)
        file.add(name, weight, kind)
    file.close()
    (directory / "model.safetensors").unlink()
    return directory


def pickled(directory: Path) -> Path:
    save(random_pre_norm("llama"), directory)
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    return directory


MAKERS = {
    "gguf": gguf,
    "pickled": pickled,
    "safetensors": lambda d: save_text_layout(random_gemma(), d),
    "compressed-tensors": lambda d: TINY_DIR / "target",
}


@pytest.mark.parametrize("name", MAKERS)
def test_linears_are_loaded_as_reported(tmp_path: Path, name: str) -> None:
    directory = MAKERS[name](tmp_path)
    target = load_target(directory, 32)
    assert isinstance(target, nn.Module)
    loaded = {
        f"{name}.weight": INT4 if isinstance(module, Int4Linear) else DENSE
        for name, module in target.named_modules()
        if isinstance(module, nn.Linear | Int4Linear)
    }
    matrices = stored_matrices(Checkpoint(directory))
    tables = {matrix.name for matrix in matrices if not matrix.is_linear}
    reported = {matrix.name: matrix.loaded_as for matrix in matrices}
    assert reported.pop("embed_tokens.weight") == DENSE and "embed_tokens.weight" in tables
    assert reported == loaded


def test_reported_sizes_are_those_of_the_file(tmp_path: Path) -> None:
    matrices = {matrix.name: matrix for matrix in stored_matrices(Checkpoint(gguf(tmp_path)))}
    value = matrices["layers.0.self_attn.v_proj.weight"]
    assert (value.file_format, value.loaded_as, value.elements) == ("Q8_0", DENSE, 128 * 256)
    assert value.bytes == value.elements // 32 * 34 and value.is_quantised
    up = matrices["layers.0.mlp.up_proj.weight"]
    assert (up.file_format, up.bytes) == ("F32", 4 * up.elements) and not up.is_quantised
    assert count_by_format(m for m in matrices.values() if m.is_linear) == {
        "int4": 8,
        "int8": 0,
        "dense": 20,
    }


def test_the_size_of_a_linear_includes_all_its_tensors() -> None:
    matrices = stored_matrices(Checkpoint(TINY_DIR / "target"))
    (up,) = (m for m in matrices if m.name == "layers.0.mlp.up_proj.weight")
    assert (up.file_format, up.loaded_as, up.elements) == ("compressed-tensors", INT4, 1024 * 256)
    assert up.elements // 2 < up.bytes < up.elements
