"""Experts: the gated MLPs of a layer; each row takes a few of them.

A row's result depends on that row alone: each of its experts multiplies that one row, and the
results are added in the order of the router's ranks. Nothing else would keep the bits of a row
among other rows, which may take the same experts or others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_rows

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.int4.linear import concatenate
from eagle_aot.targets.int4.weight import Int4Format, Int4Weight, random_int4
from eagle_aot.triton_kernels.choose_experts import choose_experts, choose_experts_reference
from eagle_aot.triton_kernels.int4_gemm import activate

MAX_EXPERTS = 1024
META = torch.device("meta")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsConfig:
    """The experts of a layer: a row takes `top_k` of `num_experts`, whose MLPs are
    `intermediate_size` wide. With `norm_topk_prob` the weights of a row's experts add up to 1."""

    num_experts: int
    top_k: int
    intermediate_size: int
    norm_topk_prob: bool = True


def read_experts(
    config: ConfigSection,
    *,
    count: object,
    top_k: int,
    intermediate_size: int,
    norm_topk_prob: bool = True,
) -> ExpertsConfig:
    """Check the numbers that a family has read of `config`. Raises CheckpointError for a number of
    experts that no layer has."""
    if type(count) is not int or not top_k <= count <= MAX_EXPERTS:
        raise CheckpointError(
            f"{config.where}: {count!r} experts, a token takes {top_k}: expected {top_k} to "
            f"{MAX_EXPERTS}"
        )
    return ExpertsConfig(
        num_experts=count,
        top_k=top_k,
        intermediate_size=intermediate_size,
        norm_topk_prob=norm_topk_prob,
    )


class RouterLinear(nn.Linear):
    """The linear of a router: it is not quantized with others, because a rounding would send rows
    to other experts."""


class ExpertChoice(nn.Module):
    """The choice of a router. With `uses_operator` it is one operator, which has a GPU kernel."""

    uses_operator = False

    def __init__(self, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, scores: Tensor, per_expert: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose the experts of rows by `scores` [T, E]: weights float32 [T, k], ids int64 [T, k].

        Arguments and results are those of `choose_experts_reference`.
        """
        choose = choose_experts if self.uses_operator else choose_experts_reference
        return choose(scores, per_expert, self.config.top_k, self.config.norm_topk_prob)


class ExpertLinears(nn.Module):
    """A bias-free linear of each expert, `weight` [E, N, K]; a row is multiplied by one."""

    weight: nn.Parameter

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """E, N and K."""
        experts, rows, columns = self.weight.shape
        return experts, rows, columns

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        """Multiply `x` [K] by the weight of one expert, int64 [1]: [N]."""
        return torch.bmm(self.weight.index_select(0, expert), x.view(1, -1, 1)).flatten()


class Int4ExpertLinears(nn.Module):
    """`ExpertLinears` over INT4 or INT8 weights in the canonical layout, with the expert as the
    first dimension of `qdata`, `scale` and `zero_point`.

    It dequantises an expert's weight in every forward, as `Int4Linear` does.
    """

    qdata: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(
        self, qdata: Tensor, scale: Tensor, zero_point: Tensor, digits: int, dtype: torch.dtype
    ) -> None:
        """qdata uint8 [E, N, K / 2], scale and zero point [E, K / g, N]."""
        super().__init__()
        self.digits = digits
        self.register_buffer("qdata", qdata)
        self.register_buffer("scale", scale.to(dtype))
        self.register_buffer("zero_point", zero_point.to(dtype))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """E, N and K."""
        experts, rows, half = self.qdata.shape
        return experts, rows, 2 * half // self.digits

    @property
    def group_size(self) -> int:
        return self.weight_of(0).group_size

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """qdata, scale and zero point."""
        return self.qdata, self.scale, self.zero_point

    def weight_of(self, expert: int) -> Int4Weight:
        """Return the weight [N, K] of one expert."""
        parts = self.qdata[expert], self.scale[expert], self.zero_point[expert]
        return Int4Weight(*parts, digits=self.digits)

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        """Multiply `x` [K] by the weight of one expert, int64 [1]: [N]."""
        return self.weight_of(int(expert)).dense() @ x

    def dense(self) -> ExpertLinears:
        """Return the linears with their weights dequantised."""
        weight = torch.empty(self.sizes, dtype=self.scale.dtype)
        for expert in range(len(weight)):
            weight[expert] = self.weight_of(expert).dense()
        return ExpertLinears(weight)


def stack_experts(
    weights: Sequence[Sequence[Int4Weight | Tensor]], dtype: torch.dtype
) -> ExpertLinears | Int4ExpertLinears:
    """Stack the weights of all experts. Each has one [N, K], or several whose rows follow one
    another. They are INT4 if all are, of one format and with columns in order."""
    parts = [part for expert in weights for part in expert]
    int4 = [part for part in parts if isinstance(part, Int4Weight) and part.order is None]
    formats = {(part.group_size, part.digits) for part in int4}
    if len(int4) < len(parts) or len(formats) > 1:
        dense = [torch.cat([_dense(part, dtype) for part in expert]) for expert in weights]
        return ExpertLinears(torch.stack(dense))
    whole = [concatenate([part for part in expert if isinstance(part, Int4Weight)])
             for expert in weights]  # fmt: skip
    return Int4ExpertLinears(
        torch.stack([weight.qdata for weight in whole]),
        torch.stack([weight.scale for weight in whole]),
        torch.stack([weight.zero_point for weight in whole]),
        whole[0].digits,
        dtype,
    )


def _dense(weight: Int4Weight | Tensor, dtype: torch.dtype) -> Tensor:
    return (weight.dense() if isinstance(weight, Int4Weight) else weight).to(dtype)


def random_experts(
    sizes: tuple[int, int, int], int4: Int4Format | None, dtype: torch.dtype
) -> ExpertLinears | Int4ExpertLinears:
    """Make random experts of `sizes` E, N and K, as `random_int4` makes a weight; dense without a
    format."""
    experts, rows, columns = sizes
    if int4 is None:
        return ExpertLinears(torch.randn(sizes, dtype=dtype) * columns**-0.5)
    weight = random_int4(experts * rows, columns, int4.group_size, dtype, int4.digits)
    scale, zero = (
        part.unflatten(1, (experts, rows)).transpose(0, 1).contiguous()
        for part in (weight.scale, weight.zero_point)
    )
    qdata = weight.qdata.unflatten(0, (experts, rows))
    return Int4ExpertLinears(qdata, scale, zero, int4.digits, dtype)


class Experts(nn.Module):
    """Gated MLPs, `down(act(gate(x)) * up(x))`; `gate_up_proj` has the rows of gate, then of up."""

    gate_up_proj: nn.Module
    down_proj: nn.Module

    def __init__(
        self, config: ExpertsConfig, hidden_size: int, activation: str, dtype: torch.dtype
    ) -> None:
        super().__init__()
        count, inner = config.num_experts, config.intermediate_size
        self.inner, self.activation, self.dtype = inner, activation, dtype
        shapes = (count, 2 * inner, hidden_size), (count, hidden_size, inner)
        gate_up, down = (torch.empty(shape, dtype=dtype, device=META) for shape in shapes)
        self.gate_up_proj, self.down_proj = ExpertLinears(gate_up), ExpertLinears(down)

    def forward(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Mix the experts `ids` int64 [T, k] of the rows `x` [T, H] by `weights` [T, k]: [T, H].

        In a traced program that is a loop over rows, whose memory is the weights of one expert.
        """
        rows = torch.cat((x.float(), weights.float(), ids.float()), 1)  # a loop takes one tensor
        mix = partial(self._mix, ids.shape[1])
        if torch.compiler.is_exporting():
            return cast(Tensor, map_rows(mix, rows))
        return torch.stack([mix(row) for row in rows])

    def _mix(self, top_k: int, row: Tensor) -> Tensor:
        """Return [H] of a row float32 [H + 2 k], which holds x, weights and ids one after another.

        Experts are added by rank.
        """
        mixed, hidden = None, len(row) - 2 * top_k
        x = row[:hidden].to(self.dtype)
        for rank in range(hidden, hidden + top_k):
            weight, expert = row[rank], row[rank + top_k].to(torch.int64).view(1)
            output = self._of_expert(x, expert) * weight.to(self.dtype)
            mixed = output if mixed is None else mixed + output
        assert mixed is not None
        return mixed

    def _of_expert(self, x: Tensor, expert: Tensor) -> Tensor:
        """Apply one expert, int64 [1], to one row [H]; same shape."""
        both = self.gate_up_proj(x, expert)
        hidden = activate(both[: self.inner], self.activation) * both[self.inner :]
        return cast(Tensor, self.down_proj(hidden, expert))
