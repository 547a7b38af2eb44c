"""Where a branch of a layer joins the residual stream."""

from torch import Tensor, nn

from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.norms import RMSNorm
from eagle_aot.targets.int4 import PackedInt4Linear
from eagle_aot.triton_kernels.residual_norm import residual_norm


class ResidualLayer(nn.Module):
    """Base: a decoder layer of some `kind`, called as `layer(stream, normed, context, next_norm)`.

    `normed` is the stream [1, T, H] after `input_layernorm`, which whoever came before has
    computed; the layer returns the new stream, and that after `next_norm`, the norm of whoever
    comes next. `branch_ends` names the linears whose products join the stream.
    """

    kind: str
    input_layernorm: RMSNorm
    branch_ends: tuple[str, ...]

    @property
    def kv_cache(self) -> KVCache:
        """The cache of its attention."""
        cache = self.get_submodule("self_attn.kv_cache")
        assert isinstance(cache, KVCache)
        return cache

    def join_packed(self) -> None:
        """Let `join` add up the parts of packed products, rather than a kernel for each."""
        for name in self.branch_ends:
            linear = self.get_submodule(name)
            if isinstance(linear, PackedInt4Linear):
                linear.in_parts = True


def join(
    branch: Tensor,
    stream: Tensor,
    next_norm: RMSNorm,
    post_norm: RMSNorm | None = None,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`(stream + post_norm(branch)) * scale`, and that after `next_norm`: both [1, T, H].

    `branch` is [1, T, H], or a packed product in parts [S, 1, T, H], for which all of it is one
    operator.
    """
    if branch.ndim == 4:
        assert next_norm.weight is not None
        post_weight, post_eps = (post_norm.weight, post_norm.eps) if post_norm else (None, 0.0)
        weights = post_weight, scale, next_norm.weight
        return residual_norm(branch, stream, *weights, post_eps, next_norm.eps)
    stream = stream + (branch if post_norm is None else post_norm(branch))
    if scale is not None:
        stream = stream * scale
    return stream, next_norm(stream)
