"""What decoder layers are made of: linears that share an input, a gated MLP, a residual stream."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.decoder.packed_experts import PackedExperts
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache
from eagle_aot.targets.int4 import (
    Biased,
    Int4Linear,
    Int4Weight,
    PackedGatedInt4,
    PackedInt4Linear,
    PackedProjections,
    rows_of,
)
from eagle_aot.triton_kernels.int4_gemm import GATED_ROWS, activate
from eagle_aot.triton_kernels.residual_norm import residual_norm

Biases = Sequence[Tensor | None]
"""The biases [N] of several linears, None for those without one."""


class SharedInput(nn.Module):
    """Base class of modules in which several linears read one input, through `project`.

    `shared_linears` names them; a linear may be None. Separate linears have their checkpoint's
    names. After `fuse_linears` one packed INT4 weight, `fused`, replaces them and they are None.
    """

    shared_linears: tuple[str, ...]
    fused: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.register_module("fused", None)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Apply each linear to `x` [1, T, K]: [1, T, N] each, in the order of `shared_linears`."""
        if self.fused is not None:
            return self.fused(x)
        return tuple(linear(x) for linear in self._linears())

    def product_parts(self, x: Tensor) -> Tensor:
        """Return the concatenated results of the linears as parts to be added, [S, 1, T, N]."""
        if isinstance(self.fused, PackedProjections):
            return self.fused.parts(x)
        return torch.cat(self.project(x), dim=-1).unsqueeze(0)

    def fuse_linears(self, multiprocessors: int) -> None:
        """Pack the linears into one weight for a GPU, if all are INT4 and fit together.

        Raises UnsupportedError for weights that the kernels cannot read.
        """
        linears = self._linears()
        biases = [linear.bias if isinstance(linear, Biased) else None for linear in linears]
        products = [m.linear if isinstance(m, Biased) else m for m in linears]
        weights = [linear.weight for linear in products if isinstance(linear, Int4Linear)]
        if not linears or len(weights) < len(linears) or not self._fits(weights, biases):
            return
        self.fused = self._pack(weights, biases, multiprocessors)
        for name in self.shared_linears:
            setattr(self, name, None)

    def _fits(self, weights: list[Int4Weight], biases: Biases) -> bool:
        """Whether `_pack` takes these weights and biases together."""
        formats = {(weight.group_size, weight.digits, weight.order is None) for weight in weights}
        orders = [weight.order for weight in weights if weight.order is not None]
        return len(formats) == 1 and all(torch.equal(order, orders[0]) for order in orders)

    def _pack(self, weights: list[Int4Weight], biases: Biases, multiprocessors: int) -> nn.Module:
        return PackedProjections(weights, multiprocessors, biases)

    def _linears(self) -> list[nn.Module]:
        linears = (getattr(self, name) for name in self.shared_linears)
        return [linear for linear in linears if linear is not None]


class GatedMLP(SharedInput):
    """`down(act(gate(x)) * up(x))`, where `activation` is "gelu_tanh" or "silu"."""

    shared_linears = ("gate_proj", "up_proj")

    def __init__(
        self, gate_proj: nn.Module, up_proj: nn.Module, down_proj: nn.Module, activation: str
    ) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate_proj, up_proj, down_proj
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to `x` [1, T, H]; same shape."""
        if self.fused is not None:
            return self.down_proj(self.fused(x))
        gate, up = self.project(x)
        return self.down_proj(activate(gate, self.activation) * up)

    def fold_column_order(self) -> None:
        """Order the rows of `gate_proj` and `up_proj` as `down_proj` stores its columns."""
        down = self.down_proj.linear if isinstance(self.down_proj, Biased) else self.down_proj
        is_split = len(self._linears()) == len(self.shared_linears)
        if not is_split or not isinstance(down, Int4Linear) or down.order is None:
            return
        for name in self.shared_linears:
            setattr(self, name, rows_of(getattr(self, name), down.order))
        down.order = None

    def _fits(self, weights: list[Int4Weight], biases: Biases) -> bool:
        """Whether one kernel computes both, which it does without biases."""
        fit = super()._fits(weights, biases) and weights[0].shape[0] % GATED_ROWS == 0
        return fit and all(bias is None for bias in biases)

    def _pack(self, weights: list[Int4Weight], biases: Biases, multiprocessors: int) -> nn.Module:
        gate, up = weights
        return PackedGatedInt4(gate, up, self.activation, multiprocessors)


def fold_column_orders(model: nn.Module) -> None:
    """Let no `down_proj` of `model` gather its input, if the linears before it are separate."""
    for module in model.modules():
        if isinstance(module, GatedMLP):
            module.fold_column_order()


class ResidualLayer(nn.Module):
    """Base class of decoder layers, called as `layer(stream, normed, context, next_norm)`.

    `kind` is the layer's type. `normed` is the residual stream [1, T, H] after `input_layernorm`,
    which the caller has computed. The layer returns the new stream and the new stream after
    `next_norm`, which is the first norm of the next layer or the model's final one.
    `branch_outputs` names the linears whose outputs are added to the stream.
    """

    kind: str
    input_layernorm: RMSNorm
    branch_outputs: tuple[str, ...]
    mixer = "self_attn"
    """The name of the module in which a row reads rows before it, through its `kv_cache`."""

    @property
    def kv_cache(self) -> KVCache:
        """The cache of the layer's attention."""
        assert isinstance(self.cache, KVCache)
        return self.cache

    @property
    def cache(self) -> KVCache | RecurrentCache:
        """The cache of the layer."""
        cache = self.get_submodule(f"{self.mixer}.kv_cache")
        assert isinstance(cache, KVCache | RecurrentCache)
        return cache

    def fuse_branch_outputs(self) -> None:
        """Let `add_branch` sum the parts of packed products, instead of a kernel for each."""
        for name in self.branch_outputs:
            linear = self.get_submodule(name)
            if isinstance(linear, PackedInt4Linear | PackedExperts):
                linear.returns_parts = True


def add_branch(
    branch: Tensor,
    stream: Tensor,
    next_norm: RMSNorm,
    post_norm: RMSNorm | None = None,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `(stream + post_norm(branch)) * scale`, and that after `next_norm`: both [1, T, H].

    `branch` is [1, T, H], or the parts of a packed product [S, 1, T, H]; then one operator does
    everything.
    """
    if branch.ndim == 4:
        assert next_norm.weight is not None
        post_weight, post_eps = (post_norm.weight, post_norm.eps) if post_norm else (None, 0.0)
        return residual_norm(
            branch, stream, post_weight, scale, next_norm.weight, post_eps, next_norm.eps
        )
    stream = stream + (branch if post_norm is None else post_norm(branch))
    if scale is not None:
        stream = stream * scale
    return stream, next_norm(stream)
