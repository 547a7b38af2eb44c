"""The memory layout of a stack of INT4 weights: that of `int4_gemm/packing.py`, expert by expert.

Each expert has whole tiles, so tile t of expert e is tile `e * tiles + t` of one packed weight.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from eagle_aot.triton_kernels.int4_gemm.packing import PackedInt4, unpack


@dataclass(frozen=True, slots=True)
class PackedExpertsWeight:
    """INT4 weights [E, N, K]: `codes`, `scales` and `zeros` (or None) of `int4_gemm/packing.py`,
    with the expert as a first dimension. `rows` and `columns` are N and K."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    rows: int
    columns: int

    def of_expert(self, expert: int) -> PackedInt4:
        """Return the weight of one expert, a view."""
        zeros = None if self.zeros is None else self.zeros[expert]
        return PackedInt4(self.codes[expert], self.scales[expert], zeros, self.rows, self.columns)

    def canonical(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return `qdata` [N, K / 2], `scale` and `zero_point` [K / g, N] of one expert."""
        return unpack(self.of_expert(expert))


def pack_experts(weights: Iterable[PackedInt4]) -> PackedExpertsWeight:
    """Stack the packed weights of all experts, which have one shape and group size.

    Symmetric experts have zero points of 8 if others have any.
    """
    packed = list(weights)
    zeros = [weight.zeros for weight in packed]
    if any(zero is not None for zero in zeros):
        zeros = [torch.full_like(w.scales, 8) if w.zeros is None else w.zeros for w in packed]
    return PackedExpertsWeight(
        torch.stack([weight.codes for weight in packed]),
        torch.stack([weight.scales for weight in packed]),
        None if zeros[0] is None else torch.stack(cast(list[Tensor], zeros)),
        packed[0].rows,
        packed[0].columns,
    )
