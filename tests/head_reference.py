"""An EAGLE-3 head without a cache, in float64, straight from the published formulas."""

import torch
from torch import Tensor
from torch.nn import functional as F

from head_files import HeadShape, Tensors

EPS = 1e-6


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x: Tensor, theta: float) -> Tensor:
    """`x` [T, heads, D] at positions 0..T-1, pair by pair as complex numbers."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None, None] * frequency
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angle), angle
    )
    return torch.cat((turned.real, turned.imag), dim=-1)


class ReferenceHead:
    """`fuse` and `run` on all slots of a sequence at once. Shapes without a batch dimension."""

    def __init__(self, tensors: Tensors, shape: HeadShape) -> None:
        self.tensors = {name: t.double() for name, t in tensors.items()}
        self.shape = shape

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def fuse(self, taps: Tensor) -> Tensor:
        """[T, num_taps * Ht] -> [T, H]."""
        taps = taps.double()
        if self.shape.norm_before_fc:
            taps = norm(taps, self.tensors["input_norm.weight"])
        if self.shape.fc_norm:
            parts = taps.split(self.shape.target_hidden, dim=-1)
            taps = torch.cat(
                [norm(p, self.tensors[f"fc_norm.{i}.weight"]) for i, p in enumerate(parts)], -1
            )
        return self.linear("fc", taps)

    def run(self, embedding: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and features [T, H] -> logits [T, Vd] and recurrent features [T, H]."""
        shape, weights = self.shape, self.tensors
        embedding, feature = embedding.double(), feature.double()
        normed = norm(feature, weights["layers.0.hidden_norm.weight"])
        residual = normed if shape.norm_before_residual else feature
        e = norm(embedding, weights["layers.0.input_layernorm.weight"])
        paired = torch.cat((e, normed), dim=-1)
        q, k, v = (
            self.linear(f"layers.0.self_attn.{name}_proj", paired).unflatten(
                -1, (-1, shape.head_dim)
            )
            for name in "qkv"
        )
        group = shape.heads // shape.kv_heads
        q, k = rotate(q, shape.rope_theta), rotate(k, shape.rope_theta)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,shd->hts", q, k) / shape.head_dim**0.5
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weight = scores.masked_fill(future, -torch.inf).softmax(-1)
        attended = torch.einsum("hts,shd->thd", weight, v).flatten(1)
        stream = residual + self.linear("layers.0.self_attn.o_proj", attended)
        p = norm(stream, weights["layers.0.post_attention_layernorm.weight"])
        gate, up = (self.linear(f"layers.0.mlp.{name}_proj", p) for name in ("gate", "up"))
        output = stream + self.linear("layers.0.mlp.down_proj", F.silu(gate) * up)
        final = norm(output, weights["norm.weight"])
        logits = F.linear(final, weights["lm_head.weight"])
        return logits, final if shape.norm_output else output
