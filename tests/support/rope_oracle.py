"""Rotary frequencies in float64 by the formulas of those who proposed them, one pair at a time.

Position interpolation (arXiv 2306.15595), "NTK-aware" bases, YaRN (arXiv 2309.00071) as the code of
its authors has it, which ramps by the pair's index, and Llama 3.1's by the number of turns.
"""

import math
from typing import Any

import torch
from torch import Tensor


def frequencies(rope: dict[str, Any], head_dim: int, context: int, length: int = 1) -> Tensor:
    """Return radians per position of each pair, float64 [head_dim / 2], for `length` tokens."""
    theta, factor = rope["rope_theta"], rope.get("factor", 1.0)
    kind = rope["rope_type"]
    first = rope.get("original_max_position_embeddings", context)
    if kind == "dynamic":
        stretch = max(1.0, factor * length / context - (factor - 1))
        theta *= stretch ** (head_dim / (head_dim - 2))
    plain = [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    if kind == "proportional":
        rotated = int(rope["partial_rotary_factor"] * head_dim / 2)
        scaled = [f / factor if pair < rotated else 0.0 for pair, f in enumerate(plain)]
    elif kind in ("default", "dynamic"):
        scaled = plain
    elif kind == "linear":
        scaled = [f / factor for f in plain]
    else:
        share = llama3_share if kind == "llama3" else yarn_share
        shares = [share(rope, pair, f, head_dim, first) for pair, f in enumerate(plain)]
        scaled = [s * f + (1 - s) * f / factor for s, f in zip(shares, plain, strict=True)]
    return torch.tensor(scaled, dtype=torch.float64)


def llama3_share(
    rope: dict[str, Any], _: int, frequency: float, head_dim: int, first: int
) -> float:
    """Return how much of a frequency stays: all with `high` or more turns in the first context."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = first * frequency / (2 * math.pi)
    return clamped((turns - low) / (high - low))


def yarn_share(rope: dict[str, Any], pair: int, _: float, head_dim: int, first: int) -> float:
    """Return the share by the pair's index, between pairs of `beta_fast` and `beta_slow` turns."""

    def pair_with(turns: float) -> float:
        return head_dim * math.log(first / (turns * 2 * math.pi)) / 2 / math.log(rope["rope_theta"])

    fast, slow = pair_with(rope.get("beta_fast", 32)), pair_with(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, head_dim - 1)
    return 1 - clamped((pair - fast) / (slow - fast or 0.001))


def attention_factor(rope: dict[str, Any]) -> float:
    """Return the factor of cosines and sines."""
    if rope["rope_type"] != "yarn":
        return 1.0
    growth = math.log(max(rope["factor"], 1.0)) / 10
    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    scaled = (above * growth + 1) / (below * growth + 1) if above and below else growth + 1
    return rope.get("attention_factor", scaled)


def tables(rope: dict[str, Any], head_dim: int, context: int, positions: Tensor) -> Tensor:
    """Return cosines and sines of positions int64 [T]: float64 [2, T, 1, head_dim]."""
    radians = frequencies(rope, head_dim, context, int(positions.max()) + 1)
    angles = (positions.double()[:, None, None] * radians).repeat(1, 1, 2)
    return torch.stack((angles.cos(), angles.sin())) * attention_factor(rope)


def clamped(share: float) -> float:
    return min(max(share, 0.0), 1.0)
