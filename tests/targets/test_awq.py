"""Reads AWQ weights, compared with the format and with compressed-tensors' converter."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.awq_gptq import check_awq, read_awq
from support.files.int4 import Tensors, awq, dense, rounded, write_linear

CONFIG: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}


@settings(max_examples=25, deadline=None)
@given(
    eights=st.integers(1, 5),
    groups=st.integers(1, 4),
    group=st.sampled_from([8, 32, 64, 128]),
    seed=st.integers(0, 2**31),
)
def test_read_weights_equal_the_written_values_for_every_shape(
    eights: int, groups: int, group: int, seed: int
) -> None:
    torch.manual_seed(seed)
    written = rounded(torch.randn(8 * eights, groups * group) + 0.3, group)
    with TemporaryDirectory() as directory:
        config = CONFIG | {"group_size": group}
        weight = read_awq(write_linear(Path(directory), awq(written), config), "proj")
    assert (weight.shape, weight.group_size) == ((8 * eights, groups * group), group)
    assert torch.equal(dense(weight), written.dense)


def converted(tensors: Tensors) -> Tensor:
    """Convert an AWQ linear with compressed-tensors and dequantise it there: [N, K]."""
    named = {f"proj.{name}": t.clone() for name, t in tensors.items()}
    converted = AutoAWQConverter(group_size=32).process(named)
    args = QuantizationArgs(num_bits=4, symmetric=False, strategy="group", group_size=32)
    parts = {name.removeprefix("proj."): tensor for name, tensor in converted.items()}
    parts["weight_scale"] = parts["weight_scale"].float()
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    return PackedQuantizationCompressor.decompress(parts, scheme)["weight"]


def test_read_weights_equal_those_of_compressed_tensors_converter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = awq(rounded(torch.randn(24, 96) + 0.3, 32))
    weight = read_awq(write_linear(tmp_path, tensors, CONFIG), "proj")
    assert torch.equal(dense(weight), converted(tensors))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("qweight", torch.zeros(64, 2, dtype=torch.int64), "qweight: torch.int64"),
        ("qweight", torch.zeros(64, dtype=torch.int32), r"qweight: torch.int32 \[64\], not an"),
        ("qweight", torch.zeros(65, 2, dtype=torch.int32), r"scales: .* weight \[16, 65\]"),
        ("qzeros", torch.zeros(2, 3, dtype=torch.int32), r"qzeros: \[2, 3\] for scales \[2, 16\]"),
        ("qzeros", torch.zeros(2, 2, dtype=torch.int8), "qzeros: torch.int8"),
        ("scales", torch.ones(2, 15), r"scales: .* weight \[16, 64\]"),
        ("scales", torch.ones(16), r"scales: .* weight \[16, 64\]"),
        ("scales", torch.ones(2, 16, dtype=torch.int32), r"scales: torch.int32"),
        ("scales", torch.full((2, 16), torch.inf), "scales: holds NaN or infinite"),
        ("scales", torch.ones(1, 16), "groups of 64, the config says 32"),
    ],
)
def test_contradictory_tensors_are_refused(
    tmp_path: Path, name: str, tensor: Tensor, message: str
) -> None:
    tensors = awq(rounded(torch.randn(16, 64), 32)) | {name: tensor}
    with pytest.raises(CheckpointError, match=message):
        read_awq(write_linear(tmp_path, tensors, CONFIG), "proj")


@pytest.mark.parametrize("name", ["qzeros", "scales"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = awq(rounded(torch.randn(16, 64), 32))
    del tensors[name]
    with pytest.raises(CheckpointError, match=f"tensor 'proj.{name}' is missing"):
        read_awq(write_linear(tmp_path, tensors, CONFIG), "proj")


def test_a_nonzero_bias_is_refused(tmp_path: Path) -> None:
    tensors = awq(rounded(torch.randn(16, 64), 32))
    read_awq(write_linear(tmp_path, tensors | {"bias": torch.zeros(16)}, CONFIG), "proj")
    checkpoint = write_linear(tmp_path, tensors | {"bias": torch.ones(16)}, CONFIG)
    with pytest.raises(UnsupportedError, match=r"proj\.bias: biases"):
        read_awq(checkpoint, "proj")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 8}, "AWQ with 8 bits"),
        ({"version": "gemv"}, "AWQ version 'gemv'"),
        ({"version": "marlin"}, "AWQ version 'marlin'"),
        ({"zero_point": False}, "AWQ without zero points"),
    ],
)
def test_unsupported_variants_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_awq(ConfigSection(CONFIG | changes, Path("config.json")))


def test_published_config_spellings_are_accepted() -> None:
    for changes in ({}, {"version": "GEMM"}, {"zero_point": True}):
        check_awq(ConfigSection(CONFIG | changes, Path("config.json")))
