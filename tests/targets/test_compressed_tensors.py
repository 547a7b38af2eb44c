"""Reads compressed-tensors weights, compared with the library that writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets import load_target
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.compressed_tensors import check_config, read_weight, scheme_of
from support.files.compressed_tensors import grid, pack, scheme_with, unpack
from support.files.int4 import count_int4_linears
from support.gemma_oracle import (
    oracle_states,
    random_gemma,
    random_tokens,
    run_in_chunks,
    save_text_layout,
    write_config,
)
from support.golden_cases import relative_error

Tensors = dict[str, Tensor]


def write_linear(directory: Path, packed: Tensors, **config: Any) -> Checkpoint:
    write_config(directory, config)
    tensors = {f"proj.{name}": t.contiguous() for name, t in packed.items()}
    save_file(tensors, directory / "model.safetensors")
    return Checkpoint(directory)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("rows", "group"), [(16, 32), (12, 64), (21, 128), (9, None)])
def test_read_weights_equal_the_librarys_bit_for_bit(
    tmp_path: Path, rows: int, group: int | None, symmetric: bool
) -> None:
    torch.manual_seed(rows)
    packed = pack(torch.randn(rows, 256) + 0.3, group, symmetric, torch.float32)
    assert ("weight_zero_point" in packed) == (not symmetric)
    weight = read_weight(write_linear(tmp_path, packed), "proj")
    assert (weight.shape, weight.group_size) == ((rows, 256), group or 256)
    dense = weight.dense()
    assert torch.equal(dense, unpack(packed, group, symmetric))
    assert len(dense.unique()) > 15


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("rows", "group"), [(16, 32), (21, 64), (9, None)])
def test_weights_of_8_bits_equal_the_librarys_bit_for_bit(
    tmp_path: Path, rows: int, group: int | None, symmetric: bool
) -> None:
    torch.manual_seed(rows)
    packed = pack(torch.randn(rows, 128) + 0.3, group, symmetric, torch.float16, 8)
    weight = read_weight(write_linear(tmp_path, packed), "proj")
    assert (weight.digits, weight.group_size) == (2, group or 128)
    scale = packed["weight_scale"].float()  # of 11 bits, so that no product is rounded
    expected = unpack(packed | {"weight_scale": scale}, group, symmetric, 8)
    assert torch.equal(weight.dense(), expected) and len(expected.unique()) > 200


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_of_older_versions_are_int8(tmp_path: Path, bits: int) -> None:
    dense = torch.randn(12, 64) + 0.3
    packed = pack(dense, 32, False, torch.float16, bits)
    expected = read_weight(write_linear(tmp_path, packed), "proj")
    _, zero = grid(dense, 32, False, bits)
    weight = read_weight(write_linear(tmp_path, packed | {"weight_zero_point": zero}), "proj")
    assert torch.equal(weight.zero_point, expected.zero_point)
    assert torch.equal(weight.dense(), expected.dense())


@pytest.mark.parametrize(
    "zero", [torch.zeros(12, 2, dtype=torch.int8), torch.zeros(2, 2, dtype=torch.int32)]
)
def test_zero_points_next_to_symmetric_weights_may_be_all_zero(
    tmp_path: Path, zero: Tensor
) -> None:
    packed = pack(torch.randn(12, 64), 32, True, torch.float32)
    stored, config = packed | {"weight_zero_point": zero}, quantization()
    checkpoint = write_linear(tmp_path, stored, quantization_config=config)
    assert torch.equal(read_weight(checkpoint, "proj").dense(), unpack(packed, 32, True))
    checkpoint = write_linear(
        tmp_path, packed | {"weight_zero_point": zero + 1}, quantization_config=config
    )
    with pytest.raises(CheckpointError, match="weight_zero_point: not those of symmetric weights"):
        read_weight(checkpoint, "proj")


def test_the_most_specific_group_decides_whether_a_module_is_symmetric(tmp_path: Path) -> None:
    groups = {
        name: {"targets": [target], "weights": {"symmetric": symmetric}}
        for name, target, symmetric in (
            ("a", "Linear", True),
            ("b", "re:.*proj$", False),
            ("c", "proj", True),
        )
    }
    config = ConfigSection({"config_groups": groups}, Path("config.json"))
    answers = {name: scheme_of(config, name).flag("symmetric") for name in ("proj", "a.proj", "up")}
    assert answers == {"proj": True, "a.proj": False, "up": True}
    broken = {"config_groups": {"a": {"targets": ["re:("], "weights": {}}}}
    with pytest.raises(CheckpointError, match=r"target 're:\(': "):
        scheme_of(ConfigSection(broken, Path("config.json")), "proj")


def test_bfloat16_scales_are_read_exactly(tmp_path: Path) -> None:
    packed = pack(torch.randn(8, 64).bfloat16(), 32, True, torch.bfloat16)
    weight = read_weight(write_linear(tmp_path, packed), "proj")
    assert torch.equal(weight.scale, packed["weight_scale"].float().t())
    linear = Int4Linear(weight, torch.bfloat16)
    assert linear.scale.dtype == linear.zero_point.dtype == torch.bfloat16
    assert torch.equal(linear.dense().weight, unpack(packed, 32, True))


@pytest.mark.parametrize(("name", "tensor", "message"), [
    ("weight_packed", torch.zeros(8, 8, dtype=torch.int64), r"does not hold \[8, 64\]"),
    ("weight_packed", torch.zeros(8, 7, dtype=torch.int32), r"does not hold \[8, 64\]"),
    ("weight_shape", torch.tensor([8, 65]), r"does not hold \[8, 65\]"),
    ("weight_scale", torch.ones(7, 2), r"weight_scale: \[7, 2\] for 8x64"),
    ("weight_scale", torch.ones(8, 3), r"weight_scale: \[8, 3\] for 8x64"),
    ("weight_zero_point", torch.zeros(8, 2, dtype=torch.int32), "zero_point.* for 8 rows"),
    ("weight_zero_point", torch.zeros(1, 2, dtype=torch.int8), "zero_point.* for 8 rows"),
    ("weight_g_idx", torch.zeros(64), r"g_idx: torch.float32 \[64\] for 64 columns"),
    ("weight_g_idx", torch.arange(63) // 32, r"g_idx: torch.int64 \[63\] for 64 columns"),
    ("weight_g_idx", torch.zeros(64).int(), "g_idx: not 32 columns in each group"),
    ("weight_g_idx", torch.arange(64) // 32 - 1, "g_idx: not 32 columns in each group"),
])  # fmt: skip
def test_contradictory_tensors_are_refused(
    tmp_path: Path, name: str, tensor: Tensor, message: str
) -> None:
    packed = pack(torch.randn(8, 64), 32, False, torch.float32) | {name: tensor}
    with pytest.raises(CheckpointError, match=message):
        read_weight(write_linear(tmp_path, packed), "proj")


@pytest.mark.parametrize("name", ["weight_scale", "weight_shape"])
def test_a_missing_part_of_a_packed_weight_is_named(tmp_path: Path, name: str) -> None:
    packed = pack(torch.randn(8, 64), 32, True, torch.float32)
    del packed[name]
    with pytest.raises(CheckpointError, match=f"proj.{name}' is missing"):
        read_weight(write_linear(tmp_path, packed), "proj")


def test_an_asymmetric_weight_needs_its_zero_points(tmp_path: Path) -> None:
    packed = pack(torch.randn(8, 64), 32, True, torch.float32)
    config = quantization(weights={"symmetric": False})
    checkpoint = write_linear(tmp_path, packed, quantization_config=config)
    with pytest.raises(CheckpointError, match=r"'proj\.weight_zero_point' is missing"):
        read_weight(checkpoint, "proj")


@pytest.mark.parametrize("group_of", [torch.arange(64) // 32, torch.full((64,), -1)])
def test_columns_in_order_may_have_a_g_idx(tmp_path: Path, group_of: Tensor) -> None:
    packed = pack(torch.randn(8, 64), 32, True, torch.float32)
    weight = read_weight(write_linear(tmp_path, packed | {"weight_g_idx": group_of.int()}), "proj")
    assert weight.order is None and torch.equal(weight.dense(), unpack(packed, 32, True))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_groups_of_columns_in_another_order_are_read(
    tmp_path: Path, bits: int, symmetric: bool
) -> None:
    """The weight is one whose columns are consecutive, with its columns permuted."""
    torch.manual_seed(bits)
    permutation = torch.randperm(96)
    in_order = pack(torch.randn(16, 96) + 0.3, 32, symmetric, torch.float16, bits)
    scale = in_order["weight_scale"].float()
    expected = unpack(in_order | {"weight_scale": scale}, 32, symmetric, bits)[:, permutation]
    codes = unpack_from_int32(in_order["weight_packed"], bits, torch.Size((16, 96)))[:, permutation]
    stored = in_order | {
        "weight_packed": pack_to_int32(codes, bits),
        "weight_g_idx": (torch.arange(96) // 32)[permutation].int(),
    }
    config = quantization(weights={"actorder": "group", "num_bits": bits, "symmetric": symmetric})
    checkpoint = write_linear(tmp_path, stored, quantization_config=config)
    assert torch.equal(read_weight(checkpoint, "proj").dense(), expected)
    del stored["weight_g_idx"]
    checkpoint = write_linear(tmp_path, stored, quantization_config=config)
    with pytest.raises(CheckpointError, match="weight_g_idx is missing, the config says actorder"):
        read_weight(checkpoint, "proj")


def check(config: dict[str, Any]) -> None:
    check_config(ConfigSection(config, Path("config.json")))


def quantization(**changes: Any) -> dict[str, Any]:
    group = scheme_with(32, True).model_dump(mode="json")
    weights = group["weights"] | changes.pop("weights", {})
    group |= {"weights": weights} | changes.pop("group", {})
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return config | {"config_groups": {"group_0": group}} | changes


def test_supported_schemes_are_accepted() -> None:
    check(quantization())
    check(quantization(weights={"symmetric": False, "strategy": "channel"}))
    check(quantization(format="mixed", group={"format": "pack-quantized"}))
    check(quantization(weights={"num_bits": 8}, kv_cache_scheme={"num_bits": 8}))
    check(quantization(transform_config={"config_groups": {"R1": rotation("weight_output")}}))


def rotation(*locations: str) -> dict[str, Any]:
    """Return the config of a Hadamard rotation."""
    return {"type": "hadamard", "apply": [{"location": location} for location in locations]}


@pytest.mark.parametrize(("changes", "message"), [
    ({"transform_config": {"config_groups": {"R4": rotation("weight_input", "input")}}},
     "transform 'R4': rotated activations"),
    ({"transform_config": {"config_groups": {"R4": {"apply": 4}}}}, "transform 'R4': rotated"),
    ({"format": "marlin-24"}, "group 'group_0': format 'marlin-24'"),
    ({"group": {"format": "nvfp4-pack-quantized"}}, "format 'nvfp4-pack-quantized'"),
    ({"weights": {"num_bits": 3}}, "int3 weights, only int4 and int8"),
    ({"weights": {"type": "float"}}, "float4 weights, only int4"),
    ({"weights": {"strategy": "tensor"}}, "strategy 'tensor'"),
    ({"group": {"weights": None}}, "NoneNone weights"),
    ({"group": {"input_activations": {"num_bits": 8}}}, "quantized activations"),
    ({"group": {"output_activations": {"num_bits": 8}}}, "quantized activations"),
])  # fmt: skip
def test_unsupported_schemes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check(quantization(**changes))


@pytest.mark.parametrize(("symmetric", "eights"), [(True, "none"), (False, "none"), (True, "v_p")])
def test_a_packed_model_matches_transformers_with_the_librarys_values(
    tmp_path: Path, symmetric: bool, eights: str
) -> None:
    """Linears with `eights` in their names have 8 bits, and zero points."""
    model = random_gemma(hidden_size=64, intermediate_size=96, head_dim=16, global_head_dim=32)
    save_text_layout(model, tmp_path)
    tensors, values = load_file(tmp_path / "model.safetensors"), model.state_dict()
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        scheme = (False, 8) if eights in name else (symmetric, 4)
        packed = pack(tensors.pop(name), 32, scheme[0], torch.float32, scheme[1])
        tensors |= {name.removesuffix("weight") + key: t for key, t in packed.items()}
        values[name] = unpack(packed, 32, *scheme)
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    said = quantization(weights={"symmetric": symmetric})
    own = scheme_with(32, False, 8).model_dump(mode="json") | {"targets": [f"re:.*{eights}"]}
    said["config_groups"]["group_1"] = own
    write_config(tmp_path, config | {"quantization_config": said})
    model.load_state_dict(values)
    target = load_target(tmp_path, 32)
    assert count_int4_linears(target) == 26
    tokens = random_tokens(30)
    logits, _ = run_in_chunks(target, tokens, [8])
    assert relative_error(logits, oracle_states(model, tokens)[0]) < 2e-5


def test_a_packed_weight_whose_shape_differs_from_the_config_is_refused(tmp_path: Path) -> None:
    save_text_layout(random_gemma(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    packed = pack(torch.randn(48, 64), 32, True, torch.float32)
    tensors |= {f"model.layers.0.mlp.up_proj.{key}": t for key, t in packed.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    write_config(tmp_path, config | {"quantization_config": quantization()})
    with pytest.raises(
        CheckpointError, match=r"up_proj is stored as \[48, 8\] words, config.json says \[48, 32"
    ):
        load_target(tmp_path, 16)
