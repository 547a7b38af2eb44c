"""Weights as compressed-tensors, the library, packs and unpacks them."""

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor

Tensors = dict[str, Tensor]


def scheme_with(group: int | None, symmetric: bool, bits: int = 4) -> QuantizationScheme:
    strategy = "channel" if group is None else "group"
    args = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy=strategy, group_size=group)
    return QuantizationScheme(targets=["Linear"], weights=args)


def grid(
    weight: Tensor, group: int | None, symmetric: bool, bits: int = 4
) -> tuple[Tensor, Tensor]:
    """Return scales float32 and zero points int8 [N, K / g] of a weight [N, K]."""
    half = 2 ** (bits - 1)
    blocks = weight.unflatten(1, (-1, group or weight.shape[1]))
    low, high = blocks.amin(-1), blocks.amax(-1)
    if symmetric:
        scale = blocks.abs().amax(-1) / (half - 0.5)
        return scale, torch.zeros_like(scale).to(torch.int8)
    scale = (high - low) / (2 * half - 1)
    return scale, (-half - low / scale).round().clamp(-half, half - 1).to(torch.int8)


def pack(
    weight: Tensor, group: int | None, symmetric: bool, dtype: torch.dtype, bits: int = 4
) -> Tensors:
    """Round a weight [N, K] and pack it with the library."""
    scale, zero = grid(weight, group, symmetric, bits)
    state = {"weight": weight, "weight_scale": scale.to(dtype), "weight_zero_point": zero}
    return dict(PackedQuantizationCompressor.compress(state, scheme_with(group, symmetric, bits)))


def unpack(packed: Tensors, group: int | None, symmetric: bool, bits: int = 4) -> Tensor:
    """Return the library's dequantised weight [N, K]."""
    scheme = scheme_with(group, symmetric, bits)
    return PackedQuantizationCompressor.decompress(packed, scheme)["weight"]
