"""Experts over packed INT4 weights, in the order that GPU kernels read."""

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from eagle_aot.targets.decoder.experts import Experts, Int4ExpertLinears
from eagle_aot.triton_kernels.int4_experts import PackedExpertsWeight, int4_experts, pack_experts
from eagle_aot.triton_kernels.int4_experts.api import Packed
from eagle_aot.triton_kernels.int4_gemm import GATED_ROWS


class PackedExpertLinears(nn.Module):
    """A stack as `codes`, `scales` and `zeros` (or None) of `int4_experts/packing.py`."""

    codes: nn.Parameter
    scales: nn.Parameter
    zeros: nn.Parameter | None

    def __init__(self, weight: PackedExpertsWeight, digits: int) -> None:
        super().__init__()
        self.out_features, self.digits = weight.rows, digits
        # Parameters, not buffers: a method may write a buffer, so AOTInductor clones each of them.
        parts = {"codes": weight.codes, "scales": weight.scales, "zeros": weight.zeros}
        for name, part in parts.items():
            parameter = None if part is None else nn.Parameter(part, requires_grad=False)
            self.register_parameter(name, parameter)

    @property
    def packed(self) -> Packed:
        return self.codes, self.scales, self.zeros, self.out_features


class PackedExperts(nn.Module):
    """`Experts` after packing. With `returns_parts` the caller adds up the parts."""

    returns_parts = False

    def __init__(self, experts: Experts) -> None:
        """The experts must be packable: `unpackable_reason` is None."""
        super().__init__()
        gate_up, down = experts.gate_up_proj, experts.down_proj
        assert isinstance(gate_up, Int4ExpertLinears) and isinstance(down, Int4ExpertLinears)
        order = torch.arange(2 * experts.inner).view(2, -1, GATED_ROWS).transpose(0, 1).flatten()
        self.gate_up_proj = _packed(gate_up, order.to(gate_up.qdata.device))
        self.down_proj = _packed(down, None)
        self.activation = experts.activation

    def forward(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Mix the experts `ids` int64 [T, k] of the rows `x` bfloat16 [T, H] by `weights` float32
        [T, k]: [T, H], or parts of that, float32 [k, T, H], which add up in ascending order."""
        parts = int4_experts(
            x,
            weights,
            ids,
            self.gate_up_proj.packed,
            self.down_proj.packed,
            self.activation,
            (self.gate_up_proj.digits, self.down_proj.digits),
        )
        if self.returns_parts:
            return parts
        mixed = parts[0]
        for rank in range(1, ids.shape[1]):  # a sum along a dimension has no order of its own
            mixed = mixed + parts[rank]
        return mixed.to(x.dtype)


def unpackable_reason(experts: Experts) -> str | None:
    """Return why the GPU kernels cannot read the experts, and what to do; None if they can."""
    for linears in (experts.gate_up_proj, experts.down_proj):
        if not isinstance(linears, Int4ExpertLinears):
            return "dense experts, the GPU kernels read INT4: add --quantize int4-g32"
        if reason := linears.weight_of(0).unpackable_reason:
            return reason
    if experts.inner % GATED_ROWS:
        return f"{experts.inner} rows of a gate, the GPU kernels read multiples of {GATED_ROWS}"
    return None


def _packed(linears: Int4ExpertLinears, order: Tensor | None) -> PackedExpertLinears:
    """Pack a stack with its rows in `order`, on a GPU if there is one; it stays on its device."""
    qdata, scale, zero = linears.parts
    if torch.cuda.is_available() and not isinstance(qdata, FakeTensor):
        home = qdata.device
        qdata, scale, zero = qdata.cuda(), scale.cuda(), zero.cuda()
        order = None if order is None else order.cuda()
    else:
        home = None
    if order is not None:
        qdata, scale, zero = qdata[:, order], scale[:, :, order], zero[:, :, order]
    weight = pack_experts(qdata, scale, zero)
    return PackedExpertLinears(weight if home is None else weight.to(home), linears.digits)
