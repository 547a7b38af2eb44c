"""Reads GPTQ weights, compared with the format."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.awq_gptq import check_gptq, check_module, read_gptq
from eagle_aot.targets.int4.formats import format_of
from support.files.int4 import Rounded, awq, dense, gptq, rounded, write_linear

CONFIG: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": False,
    "checkpoint_format": "gptq",
}
V2 = {"checkpoint_format": "gptq_v2"}
SPELLINGS = ({"checkpoint_format": "gptq_v2"}, {"format": "gptq_v2"}, {"format": "GPTQ_V2"},
             {"checkpoint_format": "gptq_v2", "format": "gptq_v2"})  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    eights=st.integers(1, 4),
    groups=st.integers(1, 4),
    group=st.sampled_from([8, 32, 64, 128]),
    symmetric=st.booleans(),
    version=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**31),
)
def test_read_weights_equal_the_written_values_for_every_shape(
    eights: int, groups: int, group: int, symmetric: bool, version: int, seed: int
) -> None:
    torch.manual_seed(seed)
    written = rounded(torch.randn(8 * eights, groups * group) + 0.3, group, symmetric)
    config = CONFIG | {"group_size": group, "sym": symmetric} | (V2 if version == 2 else {})
    with TemporaryDirectory() as directory:
        checkpoint = write_linear(Path(directory), gptq(written, version), config)
        weight = read_gptq(checkpoint, "proj")
    assert (weight.shape, weight.group_size) == ((8 * eights, groups * group), group)
    assert torch.equal(dense(weight), written.dense)


@pytest.mark.parametrize("version", [1, 2])
def test_every_zero_point_is_read_from_both_format_versions(tmp_path: Path, version: int) -> None:
    zeros = torch.arange(16).view(16, 1)
    written = Rounded(torch.arange(512).view(16, 32) % 16, zeros, torch.ones(16, 1).half())
    config = CONFIG | (V2 if version == 2 else {})
    weight = read_gptq(write_linear(tmp_path, gptq(written, version), config), "proj")
    assert weight.zero_point.tolist() == [list(range(16))]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
def test_every_spelling_of_the_second_version_is_read(
    tmp_path: Path, spelling: dict[str, str]
) -> None:
    written = rounded(torch.randn(16, 32) + 0.3, 32)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False} | spelling
    checkpoint = write_linear(tmp_path, gptq(written, 2), config)
    check_gptq(checkpoint.quantization)
    assert torch.equal(dense(read_gptq(checkpoint, "proj")), written.dense)


@pytest.mark.parametrize(("stored", "named"), [(1, "gptq_v2"), (2, "gptq")])
def test_zero_points_that_contradict_sym_are_refused(
    tmp_path: Path, stored: int, named: str
) -> None:
    tensors = gptq(rounded(torch.randn(8, 32), 32, symmetric=True), stored)
    config = CONFIG | {"sym": True, "checkpoint_format": named}
    checkpoint = write_linear(tmp_path, tensors, config)
    with pytest.raises(CheckpointError, match=r"proj.qzeros: a zero point of [79] in the format"):
        read_gptq(checkpoint, "proj")


@pytest.mark.parametrize(
    "own",
    [
        {"dynamic": {"+:.*proj": {"group_size": 16}}},
        {"dynamic": {r".*other": {"group_size": 64}, r".*proj": {"group_size": 16}}},
        {"extra_config": {"proj": {"bits": 4, "group_size": 16}}},
    ],
    ids=str,
)
def test_a_module_may_have_its_own_group_size(tmp_path: Path, own: dict[str, Any]) -> None:
    written = rounded(torch.randn(8, 64), 16)
    checkpoint = write_linear(tmp_path, gptq(written, 1), CONFIG | own)
    weight = read_gptq(checkpoint, "proj")
    assert weight.group_size == 16 and torch.equal(dense(weight), written.dense)


@pytest.mark.parametrize(
    "own",
    [{"dynamic": {".*up_proj": {"bits": 8}}}, {"extra_config": {"mlp.up_proj": {"bits": 8}}}],
    ids=str,
)
def test_a_module_with_other_bits_is_refused_by_name(own: dict[str, Any]) -> None:
    config = ConfigSection(CONFIG | own, Path("config.json"))
    check_module(config, "mlp.down_proj")
    with pytest.raises(UnsupportedError, match=r"config\.json: mlp\.up_proj has 8 bits: only 4"):
        check_module(config, "mlp.up_proj")


@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
@pytest.mark.parametrize("packing", [None, "auto_round:auto_gptq"])
def test_gptq_of_auto_round_is_read(tmp_path: Path, method: str, packing: str | None) -> None:
    written = rounded(torch.randn(8, 32), 32, symmetric=True)
    config = {"quant_method": method, "bits": 4, "group_size": 32, "sym": True}
    config |= {} if packing is None else {"packing_format": packing}
    checkpoint = write_linear(tmp_path, gptq(written, 1), config)
    layout = format_of(checkpoint)
    assert layout is not None and torch.equal(dense(layout.read(checkpoint, "proj")), written.dense)


def test_awq_of_auto_round_is_read_and_other_packings_are_refused(tmp_path: Path) -> None:
    written = rounded(torch.randn(8, 32), 32, symmetric=True)
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
    checkpoint = write_linear(
        tmp_path, awq(written), config | {"packing_format": "auto_round:auto_awq"}
    )
    layout = format_of(checkpoint)
    assert layout is not None and torch.equal(dense(layout.read(checkpoint, "proj")), written.dense)
    other = write_linear(tmp_path, awq(written), config | {"packing_format": "auto_round:exllama"})
    with pytest.raises(UnsupportedError, match="packing_format 'auto_round:exllama': known are"):
        format_of(other)


def test_contradicting_spellings_are_refused() -> None:
    config = ConfigSection(CONFIG | {"format": "gptq_v2"}, Path("config.json"))
    with pytest.raises(CheckpointError, match="checkpoint_format 'gptq' and format 'gptq_v2'"):
        check_gptq(config)


def test_symmetric_zero_points_are_stored_as_seven_in_version_one(tmp_path: Path) -> None:
    tensors = gptq(rounded(torch.randn(8, 32), 32, symmetric=True), 1)
    assert tensors["qzeros"].tolist() == [[0x77777777]]
    assert (read_gptq(write_linear(tmp_path, tensors, CONFIG), "proj").zero_point == 8).all()


def test_a_group_may_span_the_whole_row(tmp_path: Path) -> None:
    written = rounded(torch.randn(8, 96), 96)
    checkpoint = write_linear(tmp_path, gptq(written, 1), CONFIG | {"group_size": -1})
    weight = read_gptq(checkpoint, "proj")
    assert weight.group_size == 96 and torch.equal(dense(weight), written.dense)


def test_quantize_config_json_is_read(tmp_path: Path) -> None:
    written = rounded(torch.randn(8, 32), 32)
    checkpoint = write_linear(tmp_path, gptq(written, 2), {})
    (tmp_path / "quantize_config.json").write_text(
        '{"bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}'
    )
    assert checkpoint.quantization.text("quant_method") == "gptq"
    assert torch.equal(dense(read_gptq(checkpoint, "proj")), written.dense)


def test_act_order_columns_are_refused_and_a_missing_g_idx_means_in_order(tmp_path: Path) -> None:
    tensors = gptq(rounded(torch.randn(8, 64), 32), 1)
    checkpoint = write_linear(
        tmp_path, tensors | {"g_idx": torch.arange(64, dtype=torch.int32) % 2}, CONFIG
    )
    with pytest.raises(UnsupportedError, match="act-order columns; re-quantise without desc_act"):
        read_gptq(checkpoint, "proj")
    read_gptq(write_linear(tmp_path, tensors, CONFIG | {"desc_act": True}), "proj")
    del tensors["g_idx"]
    read_gptq(write_linear(tmp_path, tensors, CONFIG), "proj")
    with pytest.raises(CheckpointError, match="g_idx is missing, the config says desc_act"):
        read_gptq(write_linear(tmp_path, tensors, CONFIG | {"desc_act": True}), "proj")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("qweight", torch.zeros(8, 8, dtype=torch.int16), "qweight: torch.int16"),
        ("qweight", torch.zeros(9, 8, dtype=torch.int32), r"groups of 36, the config says 32"),
        ("qweight", torch.zeros(8, 9, dtype=torch.int32), r"scales: .* weight \[9, 64\]"),
        ("qzeros", torch.zeros(1, 1, dtype=torch.int32), r"qzeros: \[1, 1\]"),
        ("scales", torch.ones(3, 8), r"scales: .* weight \[8, 64\]"),
        ("scales", torch.ones(0, 8), r"scales: .* weight \[8, 64\]"),
        ("g_idx", torch.zeros(63, dtype=torch.int32), "act-order"),
    ],
)
def test_contradictory_tensors_are_refused(
    tmp_path: Path, name: str, tensor: Tensor, message: str
) -> None:
    tensors = gptq(rounded(torch.randn(8, 64), 32), 1) | {name: tensor}
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        read_gptq(write_linear(tmp_path, tensors, CONFIG), "proj")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 8}, "GPTQ with 8 bits"),
        ({"bits": None}, "GPTQ with None bits"),
        ({"checkpoint_format": "marlin"}, "GPTQ format 'marlin'"),
        ({"checkpoint_format": None, "format": "marlin"}, "GPTQ format 'marlin'"),
    ],
)
def test_unsupported_variants_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_gptq(ConfigSection(CONFIG | changes, Path("config.json")))
