"""Rotary position embedding in the rotate-half layout.

Angles are computed in float32 from the positions themselves, so no table limits the context and a
bfloat16 model keeps exact positions.
"""

import torch
from torch import Tensor, nn

from eagle_aot.targets.decoder.norms import cast

Rotary = tuple[Tensor, Tensor]
"""Cosines and signed sines of rows, float32 [B, T, 1, head_dim] each."""


def default_inv_freq(head_dim: int, theta: float) -> Tensor:
    """`theta^(-2i / head_dim)` for i in [0, head_dim / 2), float32 [head_dim / 2]."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / theta**exponent


def proportional_inv_freq(head_dim: int, theta: float, rotary_fraction: float) -> Tensor:
    """Gemma 4's full-attention frequencies, float32 [head_dim / 2].

    Only the first `rotary_fraction` of the pairs turn; the rest have frequency 0 and keep their
    values. The exponent's denominator is the whole head dimension
    (transformers, `_compute_proportional_rope_parameters`).
    """
    turning = int(rotary_fraction * head_dim // 2)
    frequencies = default_inv_freq(head_dim, theta)
    return torch.where(torch.arange(head_dim // 2) < turning, frequencies, 0.0)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions, times `attention_factor`."""

    inv_freq: Tensor

    def __init__(self, inv_freq: Tensor, attention_factor: float = 1.0) -> None:
        super().__init__()
        self.attention_factor = attention_factor
        self.register_buffer("inv_freq", inv_freq.float(), persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        """`positions` int64 [B, T] -> the tables `apply_rotary` takes."""
        return self.tables(positions, self.inv_freq)

    def tables(self, positions: Tensor, inv_freq: Tensor) -> Rotary:
        """The same of frequencies float32 [head_dim / 2]."""
        angles = cast(positions, torch.float32).unsqueeze(-1).unsqueeze(-1) * inv_freq
        cos, sin = angles.cos(), angles.sin()
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotary(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate pairs (i, i + head_dim / 2) of `x` [B, T, heads, head_dim]; same shape and dtype.

    Halves are taken by slicing: `chunk` would lower to `aten::split_copy`, which the CUDA backend
    has no kernel for.
    """
    cos, signed_sin = rotary
    half = x.shape[-1] // 2
    wide = cast(x, torch.float32)
    swapped = torch.cat((wide[..., half:], wide[..., :half]), dim=-1)
    return cast(wide * cos + swapped * signed_sin, x.dtype)
