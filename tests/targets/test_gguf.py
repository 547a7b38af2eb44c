"""Reads GGUF weights, compared with the gguf package."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.int4.gguf_blocks import read_q4_0, read_q4_1, read_q4_k
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.targets.weight_files.gguf_file import GgufFile
from support.files.gguf import GgufModel, random_q4_k
from support.files.int4 import dense
from support.gemma_oracle import write_config

UP = "model.layers.0.mlp.up_proj.weight"


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 9), blocks=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_q4_0_equals_the_gguf_package_bit_for_bit(rows: int, blocks: int, seed: int) -> None:
    torch.manual_seed(seed)
    stored = quantize(torch.randn(rows, 32 * blocks).numpy(), Type.Q4_0)
    weight = read_q4_0(torch.from_numpy(stored))
    assert (weight.shape, weight.group_size) == ((rows, 32 * blocks), 32)
    assert (weight.zero_point == 8).all()
    assert torch.equal(dense(weight), torch.from_numpy(dequantize(stored, Type.Q4_0)))


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_q4_k_equals_the_gguf_package_up_to_the_rounding_of_zero_points(
    rows: int, blocks: int, seed: int
) -> None:
    stored = random_q4_k(rows, 256 * blocks, seed)
    weight = read_q4_k(torch.from_numpy(stored))
    expected = torch.from_numpy(dequantize(stored, Type.Q4_K))
    assert (weight.shape, weight.group_size) == ((rows, 256 * blocks), 32)
    assert bool((weight.zero_point >= 0).all())
    assert differs_by_rounding(weight, expected)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 9),
    blocks=st.integers(1, 5),
    shift=st.sampled_from([-9.0, 0.0, 9.0]),
    seed=st.integers(0, 2**31),
)
def test_q4_1_equals_the_gguf_package_up_to_the_rounding_of_zero_points(
    rows: int, blocks: int, shift: float, seed: int
) -> None:
    """Blocks of a single sign have a zero point outside their codes."""
    torch.manual_seed(seed)
    stored = quantize(torch.randn(rows, 32 * blocks).add(shift).numpy(), Type.Q4_1)
    weight = read_q4_1(torch.from_numpy(stored))
    assert (weight.shape, weight.group_size) == ((rows, 32 * blocks), 32)
    assert differs_by_rounding(weight, torch.from_numpy(dequantize(stored, Type.Q4_1)))


def test_a_q4_1_block_with_scale_0_is_its_minimum() -> None:
    stored = quantize(torch.tensor([[0.0], [0.75], [-2.5]]).expand(3, 32).numpy(), Type.Q4_1)
    stored[:, 4:] = 0x5A  # codes have no effect without a scale
    weight = read_q4_1(torch.from_numpy(stored))
    assert torch.equal(dense(weight), torch.from_numpy(dequantize(stored, Type.Q4_1)))
    assert dense(weight)[:, 0].tolist() == [0.0, 0.75, -2.5]


def differs_by_rounding(weight: Int4Weight, expected: Tensor) -> bool:
    """Whether elements [N, K] differ by no more than the rounding of a float32 zero point."""
    steps = weight.zero_point.abs().clamp(min=15)
    magnitude = (steps * weight.scale.abs()).t().repeat_interleave(32, dim=1)
    error = (dense(weight).double() - expected.double()).abs()
    return bool((error <= 2 * torch.finfo(torch.float32).eps * magnitude).all())


def test_a_q4_k_group_with_scale_0_is_its_minimum() -> None:
    stored = random_q4_k(2, 256)
    stored[:, 4:12] = 7  # scales and minima of groups 0 to 3: 7; of 4 to 7: low bits follow
    stored[:, 4] = 0  # group 0: no scale, minimum 7
    stored[0, 8] = 0  # and no minimum there either
    weight = read_q4_k(torch.from_numpy(stored))
    expected = torch.from_numpy(dequantize(stored, Type.Q4_K))
    torch.testing.assert_close(dense(weight), expected, rtol=1e-5, atol=1e-7)
    assert (expected[0, :32] == 0).all() and (expected[1, :32] == expected[1, 0]).all()
    assert torch.equal(dense(weight)[:, :32], expected[:, :32])


def one_tensor(directory: Path, tensor: Tensor, kind: Type, name: str = UP) -> Checkpoint:
    """Write a checkpoint of one tensor, of any shape."""
    write_config(directory, {})
    model = GgufModel(directory / "model.gguf")
    model.add(name, tensor, kind)
    model.close()
    return Checkpoint(directory)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_0", "Q5_1"])
def test_other_gguf_types_are_read_dense_like_the_gguf_package(tmp_path: Path, kind: str) -> None:
    tensor = torch.randn(8, 64)
    checkpoint = one_tensor(tmp_path, tensor, Type[kind])
    assert list(checkpoint.names()) == [UP]
    assert checkpoint.shape(UP) == (8, 64) and checkpoint.int4(UP) is None
    stored = quantize(tensor.numpy(), Type[kind])
    expected = torch.from_numpy(np.array(dequantize(stored, Type[kind])))
    assert torch.equal(checkpoint.tensor(UP).float(), expected)


@pytest.mark.parametrize(("kind", "width"), [("Q6_K", 210), ("Q5_K", 176)])
def test_other_k_quants_are_read_dense(tmp_path: Path, kind: str, width: int) -> None:
    stored = np.random.default_rng(0).integers(0, 60, (4, width), dtype=np.uint8)
    write_config(tmp_path, {})
    model = GgufModel(tmp_path / "model.gguf")
    model.add_bytes("blk.0.ffn_up.weight", stored, Type[kind])
    model.close()
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.int4(UP) is None and checkpoint.shape(UP) == (4, 256)
    expected = torch.from_numpy(dequantize(stored, Type[kind]))
    assert torch.equal(checkpoint.tensor(UP), expected)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1])
def test_an_int4_tensor_can_be_read_as_int4_and_dense(tmp_path: Path, kind: Type) -> None:
    tensor = torch.randn(8, 64)
    checkpoint = one_tensor(tmp_path, tensor, kind)
    weight = checkpoint.int4(UP)
    expected = torch.from_numpy(dequantize(quantize(tensor.numpy(), kind), kind))
    assert weight is not None and differs_by_rounding(weight, expected)
    assert torch.equal(checkpoint.tensor(UP), expected)


def interleaved(tensor: Tensor, heads: int) -> Tensor:
    """Interleave the rows [N, K] of each head's two halves, as llama.cpp's converter does."""
    size = tensor.shape[0] // heads
    rows = []
    for head in range(heads):
        for i in range(size // 2):
            rows += [tensor[head * size + i], tensor[head * size + size // 2 + i]]
    return torch.stack(rows)


@pytest.mark.parametrize("kind", [Type.F32, Type.Q4_0])
def test_interleaved_rows_of_llamas_queries_and_keys_are_reordered(
    tmp_path: Path, kind: Type
) -> None:
    write_config(tmp_path, {})
    model = GgufModel(tmp_path / "model.gguf", "llama")
    model.writer.add_head_count(4)
    model.writer.add_head_count_kv(2)
    heads = {"q_proj": 4, "k_proj": 2, "v_proj": None}
    tensors = {f"model.layers.0.self_attn.{n}.weight": torch.randn(32, 64) for n in heads}
    for (name, tensor), count in zip(tensors.items(), heads.values(), strict=True):
        model.add(name, interleaved(tensor, count) if count else tensor, kind)
    model.close()
    checkpoint = Checkpoint(tmp_path)
    for name, tensor in tensors.items():
        expected = torch.from_numpy(np.array(dequantize(quantize(tensor.numpy(), kind), kind)))
        assert torch.equal(checkpoint.tensor(name), expected)
        weight = checkpoint.int4(name)
        assert (weight is None) == (kind == Type.F32)
        assert weight is None or torch.equal(dense(weight), expected)


@pytest.mark.parametrize("keep", [0, 3, 100, -200])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    one_tensor(tmp_path, torch.randn(8, 64), Type.F32)
    path = tmp_path / "model.gguf"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.gguf: cannot be read as GGUF"):
        Checkpoint(tmp_path)


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_array(kind: int, count: int, content: bytes = b"") -> bytes:
    """Return a key of an array of elements of a kind: 0 is uint8, 8 text and 9 an array."""
    return gguf_text("k") + struct.pack("<IIQ", 9, kind, count) + content


@pytest.mark.parametrize(("tensors", "keys", "content", "line"), [
    (0, 2, gguf_array(0, 4, b"four") + gguf_array(0, 2**60), "1152921504606846980 elements of arr"),
    (0, 1, gguf_array(0, 2_000_000, bytes(2_000_000)), "2000000 elements of arrays, expected at"),
    (0, 1, gguf_array(8, 2_000_000, bytes(16_000_000)), "2000000 elements of arrays, expected at"),
    (0, 2, 2 * gguf_array(8, 1_000_000, bytes(8_000_000)), "2000000 elements of arrays, expected"),
    (0, 1, gguf_array(9, 1, gguf_array(0, 1)[9:]), "an array of arrays"),
    (0, 2**60, b"", "1152921504606846976 keys, expected at most"),
    (2**60, 0, b"", "1152921504606846976 tensors, expected at most"),
    (0, 1, struct.pack("<Q", 2**60), "1152921504606846976 bytes of a text"),
    (1, 0, gguf_text("t") + struct.pack("<I", 2**31), "2147483648 dimensions, expected at most 4"),
])  # fmt: skip
def test_a_head_that_would_take_minutes_is_refused(
    tmp_path: Path, tensors: int, keys: int, content: bytes, line: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + content)
    with pytest.raises(CheckpointError, match=f"cannot be read as GGUF, .*: {line}"):
        GgufFile(path)


def test_unsupported_metadata_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, {})
    GgufModel(tmp_path / "model.gguf", "gemma3").close()
    with pytest.raises(UnsupportedError, match="architecture 'gemma3': known are gemma4, llama"):
        Checkpoint(tmp_path)
    model = GgufModel(tmp_path / "model.gguf")
    model.writer.add_uint16("split.count", 3)
    model.close()
    with pytest.raises(UnsupportedError, match="one of several parts; join them"):
        Checkpoint(tmp_path)
    GgufModel(tmp_path / "model.gguf", layers=0).close()
    with pytest.raises(CheckpointError, match=r"gemma4\.block_count is 0"):
        Checkpoint(tmp_path)


def test_infinite_scales_are_refused(tmp_path: Path) -> None:
    stored = quantize(torch.randn(8, 64).numpy(), Type.Q4_0)
    stored[3, :2] = np.array([np.inf], dtype=np.float16).view(np.uint8)
    write_config(tmp_path, {})
    model = GgufModel(tmp_path / "model.gguf")
    model.add_bytes("blk.0.ffn_up.weight", stored, Type.Q4_0)
    model.close()
    with pytest.raises(CheckpointError, match=r"up_proj\.weight has NaN or infinite scales"):
        Checkpoint(tmp_path).int4(UP)


def test_unknown_tensor_names_are_kept_for_the_loaders_error(tmp_path: Path) -> None:
    write_config(tmp_path, {})
    model = GgufModel(tmp_path / "model.gguf")
    for name in ("rope_freqs.weight", "blk.0.ffn_gate_exps.weight"):
        model.add_bytes(name, np.ones((2, 32), dtype=np.float32), Type.F32)
    model.close()
    assert list(Checkpoint(tmp_path).names()) == ["blk.0.ffn_gate_exps.weight"]
