"""An EAGLE-3 head without a cache, in float64, straight from the published formulas."""

import torch
from torch import Tensor
from torch.nn import functional as F

from support.heads.files import HeadShape, Tensors

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
        embedding, feature = embedding.double(), feature.double()
        normed = norm(feature, self.tensors["layers.0.hidden_norm.weight"])
        residual = normed if self.shape.norm_before_residual else feature
        e = norm(embedding, self.tensors["layers.0.input_layernorm.weight"])
        output = self.layer(0, residual, torch.cat((e, normed), dim=-1))
        for i in range(1, self.shape.num_layers):
            pre_norm = self.tensors[f"layers.{i}.input_layernorm.weight"]
            output = self.layer(i, output, norm(output, pre_norm))
        final = norm(output, self.tensors["norm.weight"]) if self.shape.final_norm else output
        logits = F.linear(final, self.tensors["lm_head.weight"])
        return logits, final if self.shape.norm_output else output

    def layer(self, i: int, residual: Tensor, attended: Tensor) -> Tensor:
        """Residual stream [T, H] and what attention reads [T, any] -> the layer's output [T, H]."""
        stream = residual + self.attention(f"layers.{i}.self_attn", attended)
        p = norm(stream, self.tensors[f"layers.{i}.post_attention_layernorm.weight"])
        gate, up = (self.linear(f"layers.{i}.mlp.{name}_proj", p) for name in ("gate", "up"))
        return stream + self.linear(f"layers.{i}.mlp.down_proj", F.silu(gate) * up)

    def attention(self, name: str, x: Tensor) -> Tensor:
        shape = self.shape
        q, k, v = (
            self.linear(f"{name}.{kind}_proj", x).unflatten(-1, (-1, shape.head_dim))
            for kind in "qkv"
        )
        if shape.qk_norm:
            q = norm(q, self.tensors[f"{name}.q_norm.weight"])
            k = norm(k, self.tensors[f"{name}.k_norm.weight"])
        group = shape.heads // shape.kv_heads
        q, k = rotate(q, shape.rope_theta), rotate(k, shape.rope_theta)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,shd->hts", q, k) / shape.head_dim**0.5
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weight = scores.masked_fill(future, -torch.inf).softmax(-1)
        mixed = torch.einsum("hts,shd->thd", weight, v).flatten(1)
        return self.linear(f"{name}.o_proj", mixed)
