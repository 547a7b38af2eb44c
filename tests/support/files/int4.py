"""INT4 weights of AWQ and GPTQ, written word by word from the formats' descriptions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.experts import Int4ExpertLinears
from eagle_aot.targets.int4 import Int4Linear
from eagle_aot.targets.int4.weight import Int4Weight
from support.checkpoint_edits import edit_config
from support.gemma_oracle import write_config

Tensors = dict[str, Tensor]

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Rounded:
    """A weight [N, K] on a grid: codes [N, K] of `bits`, zeros and float16 scales [N, K / g].

    `group_of` [K] is the group of each column, None for consecutive columns.
    """

    codes: Tensor
    zeros: Tensor
    scales: Tensor
    bits: int = 4
    group_of: Tensor | None = None

    @property
    def columns(self) -> Tensor:
        """The group of each column [K]."""
        size = self.codes.shape[1] // self.scales.shape[1]
        in_order = torch.arange(self.codes.shape[1]) // size
        return in_order if self.group_of is None else self.group_of

    @property
    def dense(self) -> Tensor:
        """The weight in float32 [N, K], column by column."""
        columns = []
        for k, group in enumerate(self.columns.tolist()):
            centred = (self.codes[:, k] - self.zeros[:, group]).float()
            columns.append(centred * self.scales[:, group].float())
        return torch.stack(columns, dim=1)


def rounded(
    weight: Tensor, group: int, symmetric: bool = False, bits: int = 4, act_order: bool = False
) -> Rounded:
    """Round `weight` [N, K] to the nearest points of min-max grids.

    With `act_order` the columns of each group are anywhere, in an order that depends on K.
    """
    most, half = 2**bits - 1, 2 ** (bits - 1)
    permutation = torch.arange(weight.shape[1])
    if act_order:
        seeded = torch.Generator().manual_seed(weight.shape[1])
        permutation = torch.randperm(weight.shape[1], generator=seeded)
    blocks = weight.float()[:, permutation].unflatten(1, (-1, group))
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    span = 2 * blocks.abs().amax(-1) if symmetric else high - low
    scales = (span / most).clamp(min=1e-4).half()
    zeros = torch.full_like(low, half) if symmetric else (-low / scales).round().clamp(0, most)
    codes = (blocks / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, most)
    back = permutation.argsort()
    group_of = back // group if act_order else None
    return Rounded(codes.flatten(1)[:, back].long(), zeros.long(), scales, bits, group_of)


def words(codes: Tensor, order: tuple[int, ...], bits: int = 4) -> Tensor:
    """Pack codes [R, C] into words int32 [R, C bits / 32]; code j of a word is `order[j]`."""
    rows, width = [], len(order)
    for row in codes.tolist():
        parts = [row[i : i + width] for i in range(0, len(row), width)]
        rows.append([sum(p[c] << bits * j for j, c in enumerate(order)) for p in parts])
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
    bits, order = weight.bits, tuple(range(32 // weight.bits))
    stored = (weight.zeros - 1) % 2**bits if version == 1 else weight.zeros
    return {
        "qweight": words(weight.codes, order, bits).t().contiguous(),
        "qzeros": words(stored.t(), order, bits),
        "scales": weight.scales.t().contiguous(),
        "g_idx": weight.columns.int(),
    }


def projections(directory: Path) -> tuple[Tensors, Tensors]:
    """Split the tensors of a dense checkpoint into linears and others."""
    tensors = load_file(directory / "model.safetensors")
    linears = {n: tensors.pop(n) for n in list(tensors) if n.endswith("_proj.weight")}
    return linears, tensors


def save_words(
    directory: Path, method: str, act_order: bool = False, eights: str = "none", **config: Any
) -> Tensors:
    """Save as AWQ or GPTQ; return the dequantised values by name.

    Linears with `eights` in their names have 8 bits.
    """
    linears, tensors = projections(directory)
    values = {}
    for name, weight in linears.items():
        grid = rounded(weight, GROUP, bits=8 if eights in name else 4, act_order=act_order)
        parts = awq(grid) if method == "awq" else gptq(grid, 1)
        tensors |= {name.removesuffix("weight") + part: t for part, t in parts.items()}
        values[name] = grid.dense
    save_file(tensors, directory / "model.safetensors")
    said = {"quant_method": method, "bits": 4, "group_size": GROUP} | config
    edit_config(directory, quantization_config=said)
    return values


def write_linear(directory: Path, tensors: Tensors, quantization: dict[str, Any]) -> Checkpoint:
    """Write a checkpoint of one linear, `proj`."""
    write_config(directory, {"quantization_config": quantization})
    named = {f"proj.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, directory / "model.safetensors")
    return Checkpoint(directory)


def dense(weight: Int4Weight) -> Tensor:
    """Return the weight [N, K] in its scales' dtype."""
    return weight.dense()


def count_int4_linears(target: TapTarget) -> int:
    """Count the INT4 linears of a target, a stack of experts as one."""
    return sum(
        isinstance(m, Int4Linear | Int4ExpertLinears) for m in cast(nn.Module, target).modules()
    )
