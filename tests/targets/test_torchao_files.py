"""Reads torchao tensors in safetensors, compared with ExecuTorch's and torchao's values."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.extension.llm.export.int4 import ExportableInt4Tensor
from executorch.extension.llm.export.quant import QuantConfig, quantize_weight
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.weight_files import TensorStorage
from support.files.int4 import dense
from support.gemma_oracle import write_config

INT4 = QuantConfig(bits=4, group_size=32, symmetric=False, method="min_max")
INT8 = QuantConfig(bits=8, group_size=32, symmetric=True, method="min_max")


def write(directory: Path, tensors: dict[str, Tensor], **metadata: str) -> Checkpoint:
    """Flatten and save tensors of any shape with the library."""
    write_config(directory, {})
    data, described = flatten_tensor_state_dict(tensors)
    save_file(data, directory / "model.safetensors", metadata=described | metadata)
    return Checkpoint(directory)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(2, 20),
    groups=st.integers(2, 4),  # the library drops a dimension of one
    group=st.sampled_from([32, 64, 128]),
    symmetric=st.booleans(),
    method=st.sampled_from(["min_max", "hqq"]),
    seed=st.integers(0, 2**31),
)
def test_int4_weights_equal_executorchs(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    groups: int,
    group: int,
    symmetric: bool,
    method: str,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    method = method if symmetric else "min_max"  # asymmetric HQQ needs CUDA there
    config = QuantConfig(bits=4, group_size=group, symmetric=symmetric, method=method)
    written = quantize_weight(torch.randn(rows, groups * group).bfloat16(), config)
    checkpoint = write(tmp_path_factory.mktemp("int4"), {"a.weight": written})
    weight = checkpoint.int4("a.weight")
    assert weight is not None
    assert (weight.shape, weight.group_size) == ((rows, groups * group), group)
    expected = ExportableInt4Tensor.from_int4_tensor(written).dequantize(torch.float32)
    assert torch.equal(dense(weight), expected)
    assert torch.equal(checkpoint.tensor("a.weight"), expected)


def test_int8_weights_equal_torchaos_and_stay_dense(tmp_path: Path) -> None:
    written = quantize_weight(torch.randn(8, 96).bfloat16(), INT8)
    checkpoint = write(tmp_path, {"embed_tokens.weight": written})
    assert checkpoint.int4("embed_tokens.weight") is None
    stored = checkpoint.storage("embed_tokens.weight")
    assert not stored.is_int4 and 8 * 96 < stored.bytes < 2 * 8 * 96
    assert checkpoint.shape("embed_tokens.weight") == (8, 96)
    table = checkpoint.tensor("embed_tokens.weight")
    assert torch.equal(table.bfloat16(), written.dequantize())


@pytest.mark.parametrize("mapping", ["SYMMETRIC", "ASYMMETRIC"])
def test_int4_codes_stored_as_int8_are_packed(tmp_path: Path, mapping: str) -> None:
    from torchao.quantization import IntxWeightOnlyConfig, MappingType, PerGroup, quantize_

    linear = torch.nn.Linear(64, 8, bias=False)
    kind = getattr(MappingType, mapping)
    int4 = torch.int4  # type: ignore[attr-defined]  # torch's stubs lack it
    quantize_(linear, IntxWeightOnlyConfig(int4, PerGroup(32), kind))
    checkpoint = write(tmp_path, {"a.weight": linear.weight.data})
    weight = checkpoint.int4("a.weight")
    assert checkpoint.storage("a.weight").is_int4
    assert weight is not None and torch.equal(dense(weight), linear.weight.data.dequantize())


def test_plain_tensors_keep_their_names(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, {"norm.weight": torch.arange(4.0)})
    assert list(checkpoint.names()) == ["norm.weight"]
    assert checkpoint.shape("norm.weight") == (4,) and checkpoint.int4("norm.weight") is None
    assert torch.equal(checkpoint.tensor("norm.weight"), torch.arange(4.0))
    assert checkpoint.storage("norm.weight") == TensorStorage("F32", 16)
    assert checkpoint.int4("elsewhere.weight") is None


def test_names_of_older_versions_are_read(tmp_path: Path) -> None:
    """torchao 0.14 writes `a.weight:qdata`, and `:_data` for plain tensors."""
    written = weights() | {"norm.weight": torch.arange(4.0)}
    checkpoint = write(tmp_path, written)
    expected = {name: checkpoint.tensor(name) for name in written}
    data, metadata = flatten_tensor_state_dict(written)
    pattern = re.compile(r"\._(weight)_(qdata|scale|zero_point)$")
    older = {pattern.sub(r".\1:\2", name): tensor for name, tensor in data.items()}
    older["norm.weight:_data"] = older.pop("norm.weight")
    save_file(older, tmp_path / "model.safetensors", metadata=metadata)
    checkpoint = Checkpoint(tmp_path)
    assert sorted(checkpoint.names()) == sorted(written)
    for name, tensor in expected.items():
        assert torch.equal(checkpoint.tensor(name), tensor)
        assert checkpoint.shape(name) == tensor.shape
    assert checkpoint.storage("a.weight").is_int4


def weights() -> dict[str, Tensor]:
    """Return an INT4 and an INT8 weight [8, 64] by their names."""
    torch.manual_seed(0)
    return {
        "a.weight": quantize_weight(torch.randn(8, 64).bfloat16(), INT4),
        "b.weight": quantize_weight(torch.randn(8, 64).bfloat16(), INT8),
    }


def edited(directory: Path, changes: dict[str, Tensor | None]) -> Checkpoint:
    """Rewrite the file with tensors replaced, or removed if None."""
    data, metadata = flatten_tensor_state_dict(weights())
    data = {name: tensor for name, tensor in (data | changes).items() if tensor is not None}
    write_config(directory, {})
    save_file(data, directory / "model.safetensors", metadata=metadata)
    return Checkpoint(directory)


@pytest.mark.parametrize(("name", "tensor", "message"), [
    ("a._weight_qdata", torch.zeros(8, 32, dtype=torch.int16), "a.weight has torch.int16 codes"),
    ("a._weight_scale", torch.ones(2, 7), r"scale \[2, 7\]"),
    ("a._weight_scale", torch.tensor(1.0), r"scale \[\]"),
    ("b._weight_scale", torch.tensor(1.0), "b.weight: torch.int8"),
    ("a._weight_scale", torch.ones(3, 8), r"zero point \[2, 8\]"),
    ("a._weight_scale", torch.full((2, 8), torch.nan), "a.weight has NaN"),
    ("b._weight_qdata", torch.zeros(8, 64), "b.weight: torch.float32"),
    ("b._weight_scale", torch.ones(8, 3), "b.weight: torch.int8"),
])  # fmt: skip
def test_contradictory_tensors_are_refused(
    tmp_path: Path, name: str, tensor: Tensor, message: str
) -> None:
    checkpoint = edited(tmp_path, {name: tensor})
    with pytest.raises(CheckpointError, match=message):
        checkpoint.tensor(f"{name[0]}.weight")


def test_a_missing_part_is_named_and_an_extra_tensor_is_listed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tensor 'a\._weight_scale' is missing"):
        edited(tmp_path, {"a._weight_scale": None})
    checkpoint = edited(tmp_path, {"surprise": torch.ones(1)})
    assert list(checkpoint.names()) == ["a.weight", "b.weight", "surprise"]


def test_torchaos_own_signed_codes_are_refused(tmp_path: Path) -> None:
    qdata = load_file_of(tmp_path)["a._weight_qdata"].view(torch.int8)
    checkpoint = edited(tmp_path, {"a._weight_qdata": qdata})
    with pytest.raises(UnsupportedError, match="signed codes, as torchao's own"):
        checkpoint.int4("a.weight")


def load_file_of(directory: Path) -> dict[str, Tensor]:
    edited(directory, {})
    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize(("described", "message"), [
    ({"_type": "Float8Tensor"}, "a.weight is a torchao Float8Tensor"),
    ({"_type": "Int4Tensor", "_data": []}, "torchao metadata of 'a.weight'"),
    ({"_type": "Int4Tensor", "_tensor_data_names": ["qdata", "act_pre_scale"]}, "scales them"),
    (
        {"_type": "IntxUnpackedToInt8Tensor", "_data": {"activation_quantization": "int8"}},
        "quantizes activations",
    ),
    ([], r"torchao metadata of 'a.weight' is \[\]"),
])  # fmt: skip
def test_an_unknown_tensor_class_is_refused(tmp_path: Path, described: Any, message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        write(tmp_path, weights(), **{"a.weight": json.dumps(described)})


@pytest.mark.parametrize("names", ["[", "{}", '["c.weight"]'])
def test_damaged_metadata_is_refused(tmp_path: Path, names: str) -> None:
    with pytest.raises(CheckpointError, match="torchao metadata of"):
        write(tmp_path, weights(), tensor_names=names)
