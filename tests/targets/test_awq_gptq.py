"""Reading AWQ and GPTQ weights, compared with the formats and with another converter."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.awq_gptq import check_awq, check_gptq, read_awq, read_gptq
from eagle_aot.targets.int4.formats import format_of
from eagle_aot.targets.int4.weight import Int4Weight
from support.files.int4 import Rounded, Tensors, awq, dense, gptq, rounded, write_linear

Config = dict[str, Any]
AWQ: Config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
GPTQ: Config = {
    "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False,
    "checkpoint_format": "gptq",
}  # fmt: skip
INT32 = torch.int32
V2 = {"checkpoint_format": "gptq_v2"}


SPELLINGS = ({"checkpoint_format": "gptq_v2"}, {"format": "gptq_v2"}, {"format": "GPTQ_V2"},
             {"checkpoint_format": "gptq_v2", "format": "gptq_v2"})  # fmt: skip


def read(directory: Path, tensors: Tensors, config: Config) -> Int4Weight:
    """Write a checkpoint of one linear and read it."""
    checkpoint = write_linear(directory, tensors, config)
    return (read_awq if config["quant_method"] == "awq" else read_gptq)(checkpoint, "proj")


@settings(max_examples=60, deadline=None)
@given(
    eights=st.integers(1, 5),
    groups=st.integers(1, 4),
    group=st.sampled_from([8, 32, 64, 128]),
    symmetric=st.booleans(),
    form=st.sampled_from(["awq", "gptq 1", "gptq 2"]),
    bits=st.sampled_from([4, 8]),
    act_order=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_read_weights_equal_the_written_values_for_every_shape(
    eights: int,
    groups: int,
    group: int,
    symmetric: bool,
    form: str,
    bits: int,
    act_order: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    bits, act_order = (4, False) if form == "awq" else (bits, act_order)
    dense_weight = torch.randn(8 * eights, groups * group) + 0.3
    written = rounded(dense_weight, group, symmetric, bits, act_order)
    half, shift = 2 ** (bits - 1), 1 if form == "gptq 1" else -1
    assume(form == "awq" or not (written.zeros == half + shift).all())
    config = (AWQ if form == "awq" else GPTQ) | {"group_size": group, "sym": symmetric}
    config |= {"bits": bits, "desc_act": act_order} | (V2 if form == "gptq 2" else {})
    tensors = awq(written) if form == "awq" else gptq(written, int(form[-1]))
    with TemporaryDirectory() as directory:
        weight = read(Path(directory), tensors, config)
    assert (weight.digits, weight.group_size) == (bits // 4, group)
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
    assert torch.equal(dense(read(tmp_path, tensors, AWQ)), converted(tensors))


@pytest.mark.parametrize(("config", "name", "tensor", "message"), [
    (AWQ, "qweight", torch.zeros(64, 2, dtype=torch.int64), "qweight: torch.int64"),
    (AWQ, "qweight", torch.zeros(64, dtype=INT32), r"qweight: torch.int32 \[64\], not an"),
    (AWQ, "qweight", torch.zeros(65, 2, dtype=INT32), r"scales: .* weight \[16, 65\]"),
    (AWQ, "qzeros", torch.zeros(2, 3, dtype=INT32), r"qzeros: \[2, 3\] for scales \[2, 16\]"),
    (AWQ, "qzeros", torch.zeros(2, 2, dtype=torch.int8), "qzeros: torch.int8"),
    (AWQ, "scales", torch.ones(2, 15), r"scales: .* weight \[16, 64\]"),
    (AWQ, "scales", torch.ones(16), r"scales: .* weight \[16, 64\]"),
    (AWQ, "scales", torch.ones(2, 16, dtype=INT32), r"scales: torch.int32"),
    (AWQ, "scales", torch.full((2, 16), torch.inf), "scales: holds NaN or infinite"),
    (AWQ, "scales", torch.ones(1, 16), "groups of 64, the config says 32"),
    (GPTQ, "qweight", torch.zeros(8, 8, dtype=torch.int16), "qweight: torch.int16"),
    (GPTQ, "qweight", torch.zeros(9, 8, dtype=INT32), r"groups of 36, the config says 32"),
    (GPTQ, "qweight", torch.zeros(8, 9, dtype=INT32), r"scales: .* weight \[9, 64\]"),
    (GPTQ, "qzeros", torch.zeros(1, 1, dtype=INT32), r"qzeros: \[1, 1\]"),
    (GPTQ, "scales", torch.ones(3, 8), r"scales: .* weight \[8, 64\]"),
    (GPTQ, "scales", torch.ones(0, 8), r"scales: .* weight \[8, 64\]"),
    (GPTQ, "g_idx", torch.zeros(63, dtype=INT32), r"g_idx: torch.int32 \[63\] for 64 columns"),
    (GPTQ, "g_idx", torch.zeros(64, dtype=INT32), "g_idx: not 32 columns in each group"),
])  # fmt: skip
def test_contradictory_tensors_are_refused(
    tmp_path: Path, config: Config, name: str, tensor: Tensor, message: str
) -> None:
    """Of weights [16, 64] in AWQ and [8, 64] in GPTQ."""
    if config is AWQ:
        tensors = awq(rounded(torch.randn(16, 64), 32))
    else:
        tensors = gptq(rounded(torch.randn(8, 64), 32), 1)
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, tensors | {name: tensor}, config)


@pytest.mark.parametrize("name", ["qzeros", "scales"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = awq(rounded(torch.randn(16, 64), 32))
    del tensors[name]
    with pytest.raises(CheckpointError, match=f"tensor 'proj.{name}' is missing"):
        read(tmp_path, tensors, AWQ)


@pytest.mark.parametrize(("config", "message"), [
    (AWQ | {"bits": 8}, "AWQ with 8 bits"),
    (AWQ | {"version": "gemv"}, "AWQ version 'gemv'"),
    (AWQ | {"version": "marlin"}, "AWQ version 'marlin'"),
    (AWQ | {"backend": "llm-awq"}, "AWQ version 'llm-awq'"),
    (GPTQ | {"bits": 3}, "GPTQ with 3 bits: only 4 and 8 are read"),
    (GPTQ | {"bits": None}, "GPTQ with None bits"),
    (GPTQ | {"is_marlin_format": True}, "GPTQ with is_marlin_format"),
    (GPTQ | {"rotation": "hadamard"}, "rotation: only plain INT4 weights"),
    (GPTQ | {"adapter": {"path": "eora"}}, "adapter: only plain INT4 weights"),
    (AWQ | {"rotation_config": {"block_size": 32}}, "rotation_config: only plain INT4 weights"),
    (GPTQ | {"act_bits": 8}, "act_bits 8: only weight-only is read"),
    (GPTQ | {"data_type": "mx_fp"}, "data_type 'mx_fp': only 'int' is read"),
    (GPTQ | {"checkpoint_format": "marlin"}, "GPTQ format 'marlin'"),
    (GPTQ | {"checkpoint_format": None, "format": "marlin"}, "GPTQ format 'marlin'"),
])  # fmt: skip
def test_unsupported_variants_are_refused(config: Config, message: str) -> None:
    check = check_awq if config["quant_method"] == "awq" else check_gptq
    with pytest.raises(UnsupportedError, match=message):
        check(ConfigSection(config, Path("config.json")))


def test_published_config_spellings_are_accepted() -> None:
    for changes in ({}, {"version": "GEMM"}, {"zero_point": True}):
        check_awq(ConfigSection(AWQ | changes, Path("config.json")))


@pytest.mark.parametrize("version", [1, 2])
def test_every_zero_point_is_read_from_both_format_versions(tmp_path: Path, version: int) -> None:
    zeros = torch.arange(16).view(16, 1)
    written = Rounded(torch.arange(512).view(16, 32) % 16, zeros, torch.ones(16, 1).half())
    weight = read(tmp_path, gptq(written, version), GPTQ | (V2 if version == 2 else {}))
    assert weight.zero_point.tolist() == [list(range(16))]


def test_symmetric_zero_points_are_stored_as_seven_in_version_one(tmp_path: Path) -> None:
    tensors = gptq(rounded(torch.randn(8, 32), 32, symmetric=True), 1)
    assert tensors["qzeros"].tolist() == [[0x77777777]]
    assert (read(tmp_path, tensors, GPTQ).zero_point == 8).all()


def test_a_group_may_span_the_whole_row(tmp_path: Path) -> None:
    written = rounded(torch.randn(8, 96), 96)
    checkpoint = write_linear(tmp_path, gptq(written, 1), GPTQ | {"group_size": -1})
    weight = read_gptq(checkpoint, "proj")
    assert weight.group_size == 96 and torch.equal(dense(weight), written.dense)


def test_the_file_of_older_autoawq_is_read(tmp_path: Path) -> None:
    written = rounded(torch.randn(16, 64) + 0.3, 32)
    checkpoint = write_linear(tmp_path, awq(written), {})
    (tmp_path / "quant_config.json").write_text(
        '{"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}'
    )
    layout = format_of(checkpoint)
    assert layout is not None and torch.equal(dense(layout.read(checkpoint, "proj")), written.dense)


def test_quantize_config_json_is_read(tmp_path: Path) -> None:
    written = rounded(torch.randn(8, 32), 32)
    checkpoint = write_linear(tmp_path, gptq(written, 2), {})
    (tmp_path / "quantize_config.json").write_text(
        '{"bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}'
    )
    assert checkpoint.quantization.text("quant_method") == "gptq"
    assert torch.equal(dense(read_gptq(checkpoint, "proj")), written.dense)


def test_desc_act_needs_a_g_idx_unless_groups_span_rows(tmp_path: Path) -> None:
    tensors = gptq(rounded(torch.randn(8, 64), 32), 1)
    assert read(tmp_path, tensors, GPTQ | {"desc_act": True}).order is None
    del tensors["g_idx"]
    read(tmp_path, tensors, GPTQ)
    with pytest.raises(CheckpointError, match="g_idx is missing, the config says desc_act"):
        read(tmp_path, tensors, GPTQ | {"desc_act": True})
    whole = gptq(rounded(torch.randn(8, 64), 64), 1)
    assert read(tmp_path, whole, GPTQ | {"desc_act": True, "group_size": -1}).order is None


def test_act_order_columns_are_stored_group_by_group(tmp_path: Path) -> None:
    codes = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 9]]).expand(8, 8)
    group_of, scales = torch.tensor([1, 0, 0, 1, 0, 1, 1, 0]), torch.tensor([[1.0, 100.0]])
    zeros = torch.full((8, 2), 8)
    written = Rounded(codes, zeros, scales.expand(8, 2).half(), group_of=group_of)
    weight = read(tmp_path, gptq(written, 2), GPTQ | V2 | {"group_size": 4})
    assert weight.order is not None and weight.order.tolist() == [1, 2, 4, 7, 0, 3, 5, 6]
    assert weight.dense().tolist() == 8 * [[-700, -6, -5, -400, -3, -200, -100, 1]]


@pytest.mark.parametrize("flag", [{"zero_point": False}, {"sym": True}], ids=str)
def test_awq_without_zero_points_is_symmetric(tmp_path: Path, flag: dict[str, bool]) -> None:
    written = rounded(torch.randn(16, 64), 32, symmetric=True)
    tensors = awq(written)
    for parts in (tensors, {n: t for n, t in tensors.items() if n != "qzeros"}):
        assert torch.equal(dense(read(tmp_path, parts, AWQ | flag)), written.dense)
    asymmetric = rounded(torch.randn(16, 64) + 1, 32)
    with pytest.raises(CheckpointError, match=r"qzeros: a zero point of \d+ in the format 'gemm'"):
        read(tmp_path, awq(asymmetric), AWQ | flag)
    stored = read(tmp_path, awq(asymmetric), AWQ | {"sym": True, "zero_point": True})
    assert torch.equal(dense(stored), asymmetric.dense), "older GPTQModel has both"


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
    config = GPTQ | {"sym": True, "checkpoint_format": named}
    checkpoint = write_linear(tmp_path, tensors, config)
    with pytest.raises(CheckpointError, match=r"proj.qzeros: a zero point of [79] in the format"):
        read_gptq(checkpoint, "proj")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("said", [{}, {"sym": False}, {"sym": True}], ids=str)
@pytest.mark.parametrize(("stored", "spelling", "line"), [
    (2, {}, "set checkpoint_format to 'gptq_v2' in .*config.json"),
    (2, {"format": "gptq"}, "set format to 'gptq_v2' in"),
    (1, V2, "set checkpoint_format to 'gptq' in"),
    (1, {"packing_format": "auto_round"}, "set checkpoint_format to 'gptq' in"),
])  # fmt: skip
def test_symmetric_zero_points_of_the_other_version_are_refused(
    tmp_path: Path, bits: int, said: Config, stored: int, spelling: Config, line: str
) -> None:
    written = rounded(torch.randn(8, 64), 32, symmetric=True, bits=bits)
    config = {"quant_method": "gptq", "bits": bits, "group_size": 32} | said | spelling
    with pytest.raises(CheckpointError, match=rf"^proj.qzeros: .* have {2 ** (bits - 1)}: {line}"):
        read(tmp_path, gptq(written, stored), config)
    assert torch.equal(dense(read(tmp_path, gptq(written, 3 - stored), config)), written.dense)


@pytest.mark.parametrize(("changes", "line"), [
    ({"bits": "4"}, "bits is '4', a string: expected an integer"),
    ({"bits": None, "w_bit": "4"}, "w_bit is '4', a string"),
    ({"group_size": "32"}, "group_size is '32', a string"),
    ({"dynamic": {".*": {"bits": "8"}}}, "bits is '8', a string"),
], ids=str)  # fmt: skip
def test_numbers_in_quotes_are_refused(tmp_path: Path, changes: Config, line: str) -> None:
    tensors = gptq(rounded(torch.randn(8, 64), 32), 1)
    with pytest.raises(CheckpointError, match=rf"config\.json: {line}"):
        read(tmp_path, tensors, GPTQ | changes)


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json"])
def test_a_second_file_adds_what_the_config_does_not_say(tmp_path: Path, name: str) -> None:
    written = rounded(torch.randn(8, 32), 32)
    config = {"quant_method": "gptq", "bits": 4, "group_size": None, "damp_percent": 0.1}
    checkpoint = write_linear(tmp_path, gptq(written, 2), config)
    second = {"w_bit": 4, "checkpoint_format": "GPTQ_V2", "group_size": 32, "damp_percent": 0.01}
    (tmp_path / name).write_text(json.dumps(second))
    assert torch.equal(dense(read_gptq(checkpoint, "proj")), written.dense)
    assert checkpoint.quantization.text("quant_method") == "gptq"


@pytest.mark.parametrize(("first", "second", "line"), [
    (V2, {"format": "gptq"}, "checkpoint_format 'gptq_v2' and .* says 'gptq'"),
    ({}, {"w_bit": 8}, "bits 4 and"),
    ({}, {"q_group_size": 64}, "group_size 32 and"),
    ({}, {"sym": True}, "sym False and"),
    ({}, {"quant_method": "awq"}, "quant_method 'gptq' and"),
], ids=str)  # fmt: skip
def test_contradicting_places_are_refused(
    tmp_path: Path, first: Config, second: Config, line: str
) -> None:
    tensors = gptq(rounded(torch.randn(8, 32), 32), 1)
    for name in ("quantize_config.json", "config.json: quantization_config.quantization_config"):
        nested = {"quantization_config": second} if name.startswith("config") else {}
        checkpoint = write_linear(tmp_path, tensors, GPTQ | first | nested)
        if not nested:
            (tmp_path / name).write_text(json.dumps(second))
        with pytest.raises(CheckpointError, match=rf"config\.json says {line}") as error:
            read_gptq(checkpoint, "proj")
        assert name in str(error.value)
        (tmp_path / "quantize_config.json").unlink(missing_ok=True)


@pytest.mark.parametrize("own", [
    {"dynamic": {"+:.*proj": {"group_size": 16}}},
    {"dynamic": {r".*other": {"group_size": 64}, r".*proj": {"group_size": 16}}},
    {"extra_config": {"proj": {"bits": 4, "group_size": 16}}},
], ids=str)  # fmt: skip
def test_a_module_may_have_its_own_group_size(tmp_path: Path, own: dict[str, Any]) -> None:
    written = rounded(torch.randn(8, 64), 16)
    weight = read_gptq(write_linear(tmp_path, gptq(written, 1), GPTQ | own), "proj")
    assert weight.group_size == 16 and torch.equal(dense(weight), written.dense)


@pytest.mark.parametrize("own", [
    {"dynamic": {".*proj": {"bits": 8, "group_size": 16}}},
    {"extra_config": {"proj": {"bits": 8, "group_size": 16}}},
    {"extra_config": {"other": {"bits": 2}, ".*pro[jk]": {"bits": 8, "group_size": 16}}},
], ids=str)  # fmt: skip
def test_a_module_may_have_8_bits_but_not_3(tmp_path: Path, own: dict[str, Any]) -> None:
    written = rounded(torch.randn(8, 64), 16, bits=8)
    checkpoint = write_linear(tmp_path, gptq(written, 1), GPTQ | own)
    weight = read_gptq(checkpoint, "proj")
    assert (weight.digits, weight.group_size) == (2, 16)
    assert torch.equal(dense(weight), written.dense)
    three = json.loads(json.dumps(GPTQ | own).replace('"bits": 8', '"bits": 3'))
    with pytest.raises(UnsupportedError, match=r"config\.json: proj has 3 bits: only 4 and 8"):
        read_gptq(write_linear(tmp_path, gptq(written, 1), three), "proj")


def test_an_expression_that_is_none_is_refused(tmp_path: Path) -> None:
    tensors = gptq(rounded(torch.randn(8, 64), 32), 1)
    for own in ({"dynamic": {"(": {"bits": 8}}}, {"extra_config": {"(": {"bits": 8}}}):
        with pytest.raises(CheckpointError, match=r"config\.json: expression '\('"):
            read(tmp_path, tensors, GPTQ | own)


@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
@pytest.mark.parametrize(("packing", "version"), [
    (None, 1), ("auto_round:auto_gptq", 1), ("auto_round", 2), ("auto_round:gptqmodel", 2),
])  # fmt: skip
def test_gptq_of_auto_round_is_read(
    tmp_path: Path, method: str, packing: str | None, version: int
) -> None:
    written = rounded(torch.randn(8, 32), 32)
    config = {"quant_method": method, "bits": 4, "group_size": 32, "sym": False}
    config |= {} if packing is None else {"packing_format": packing}
    checkpoint = write_linear(tmp_path, gptq(written, version), config)
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
    config = ConfigSection(GPTQ | {"format": "gptq_v2"}, Path("config.json"))
    with pytest.raises(CheckpointError, match="checkpoint_format 'gptq' and format 'gptq_v2'"):
        check_gptq(config)
