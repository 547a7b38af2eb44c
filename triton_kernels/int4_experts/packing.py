"""The memory layout of a stack of INT4 weights: that of `int4_gemm/packing.py`, expert by expert.

Each expert has whole tiles, so tile t of expert e is tile `e * tiles + t` of one packed weight.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.triton_kernels.int4_gemm.packing import (
    TILE_N,
    PackedInt4,
    is_symmetric,
    pack,
    unpack,
)


@dataclass(frozen=True, slots=True)
class PackedExpertsWeight:
    """INT4 weights [E, N, K]: `codes`, `scales` and `zeros` (or None) of `int4_gemm/packing.py`,
    with the expert as a first dimension. `rows` and `columns` are N and K."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    rows: int
    columns: int

    def to(self, device: torch.device) -> "PackedExpertsWeight":
        """Move the weight to another device."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return replace(
            self, codes=self.codes.to(device), scales=self.scales.to(device), zeros=zeros
        )

    def of_expert(self, expert: int) -> PackedInt4:
        """Return the weight of one expert, a view."""
        zeros = None if self.zeros is None else self.zeros[expert]
        return PackedInt4(self.codes[expert], self.scales[expert], zeros, self.rows, self.columns)

    def canonical(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return `qdata` [N, K / 2], `scale` and `zero_point` [K / g, N] of one expert."""
        return unpack(self.of_expert(expert))


def pack_experts(qdata: Tensor, scale: Tensor, zero_point: Tensor) -> PackedExpertsWeight:
    """Pack weights of a packable group size, in the layout of `int4_gemm/reference.py` with the
    expert as a first dimension, on any device.

    qdata uint8 [E, N, K / 2], scale and zero_point [E, K / g, N]. Rows are padded to whole tiles.
    """
    experts, rows, half = qdata.shape
    padding = -rows % TILE_N
    whole = F.pad(qdata, (0, 0, 0, padding)).flatten(0, 1)
    per_row = [F.pad(v, (0, padding)).transpose(0, 1).flatten(1) for v in (scale, zero_point)]
    packed = pack(whole, *per_row)
    symmetric = is_symmetric(zero_point)  # rows of padding have zero points of 0
    codes, scales, zeros = (
        part if part is None else part.unflatten(0, (experts, -1))
        for part in (packed.codes, packed.scales, None if symmetric else packed.zeros)
    )
    assert codes is not None and scales is not None
    return PackedExpertsWeight(codes, scales, zeros, rows, 2 * half)
