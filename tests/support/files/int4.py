"""INT4 weights of AWQ and GPTQ, written word by word from the formats' descriptions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.weight import Int4Weight
from eagle_aot.triton_kernels.int4_gemm import dequantise_int4
from support.gemma_oracle import write_config

Tensors = dict[str, Tensor]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
IN_ORDER = tuple(range(8))


@dataclass(frozen=True)
class Rounded:
    """A weight [N, K] on a grid of 16: codes [N, K], zeros and float16 scales [N, K / g]."""

    codes: Tensor
    zeros: Tensor
    scales: Tensor

    @property
    def dense(self) -> Tensor:
        """The weight in float32 [N, K], group by group."""
        size = self.codes.shape[1] // self.scales.shape[1]
        columns = []
        for k in range(self.codes.shape[1]):
            centred = (self.codes[:, k] - self.zeros[:, k // size]).float()
            columns.append(centred * self.scales[:, k // size].float())
        return torch.stack(columns, dim=1)


def rounded(weight: Tensor, group: int, symmetric: bool = False) -> Rounded:
    """Round `weight` [N, K] to the nearest points of min-max grids."""
    blocks = weight.float().unflatten(1, (-1, group))
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    span = 2 * blocks.abs().amax(-1) if symmetric else high - low
    scales = (span / 15).clamp(min=1e-4).half()
    zeros = torch.full_like(low, 8) if symmetric else (-low / scales).round().clamp(0, 15)
    codes = (blocks / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, 15)
    return Rounded(codes.flatten(1).long(), zeros.long(), scales)


def words(codes: Tensor, order: tuple[int, ...]) -> Tensor:
    """Pack codes [R, C] into words int32 [R, C / 8]: nibble j of a word is column `order[j]`."""
    rows = []
    for row in codes.tolist():
        eights = [row[i : i + 8] for i in range(0, len(row), 8)]
        rows.append([sum(e[c] << 4 * j for j, c in enumerate(order)) for e in eights])
    signed = [[word - 2**32 if word >= 2**31 else word for word in row] for row in rows]
    return torch.tensor(signed, dtype=torch.int32)


def awq(weight: Rounded) -> Tensors:
    """Return the tensors of an AWQ linear."""
    return {
        "qweight": words(weight.codes.t(), AWQ_ORDER),
        "qzeros": words(weight.zeros.t(), AWQ_ORDER),
        "scales": weight.scales.t().contiguous(),
    }


def gptq(weight: Rounded, version: int) -> Tensors:
    """Return the tensors of a GPTQ linear; version 1 stores zeros minus one."""
    stored = (weight.zeros - 1) % 16 if version == 1 else weight.zeros
    size = weight.codes.shape[1] // weight.scales.shape[1]
    return {
        "qweight": words(weight.codes, IN_ORDER).t().contiguous(),
        "qzeros": words(stored.t(), IN_ORDER),
        "scales": weight.scales.t().contiguous(),
        "g_idx": torch.arange(weight.codes.shape[1], dtype=torch.int32) // size,
    }


def write_linear(directory: Path, tensors: Tensors, quantization: dict[str, Any]) -> Checkpoint:
    """Write a checkpoint of one linear, `proj`."""
    write_config(directory, {"quantization_config": quantization})
    named = {f"proj.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, directory / "model.safetensors")
    return Checkpoint(directory)


def dense(weight: Int4Weight) -> Tensor:
    """Return the weight [N, K] in its scales' dtype."""
    return dequantise_int4(weight.qdata, weight.scale, weight.zero_point)


def count_int4_linears(target: TapTarget) -> int:
    """Count the INT4 linears of a target."""
    return sum(isinstance(m, Int4Linear) for m in cast(nn.Module, target).modules())
