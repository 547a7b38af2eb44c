"""Logits and sampling parameters with thresholds that are hard to find.

They are among equal logits, far from all others, or where the search does not expect them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.processors import Processors, Rows

LOWEST = torch.finfo(torch.float32).min


def edges(vocab: int) -> dict[str, Tensor]:
    """Return rows of logits, float32 [vocab] with at least 100 tokens, by name."""
    generator = torch.Generator().manual_seed(vocab)
    normal = torch.randn(10, vocab, generator=generator) * 4
    few, far, high, low, wide, masked = normal[2:8]
    few[3:] = -torch.inf
    far[::2] -= 100
    high[5] = wide[5] = 1e30
    low[7] = wide[7] = -1e30
    masked[10:] = LOWEST
    alone = torch.full((vocab,), -torch.inf)
    alone[vocab // 3] = -7.0
    zeros = torch.zeros(vocab)
    zeros[::3], zeros[::7], zeros[::11] = -0.0, 1e-40, -1e-42  # and subnormal numbers
    levels = torch.randint(0, 40, (2, vocab), generator=generator)
    return {
        "flat": normal[0] / 4,
        "rounded": normal[1].bfloat16().float(),
        "few": few,
        "far apart": far,
        "one high": high,
        "one low": low,
        "both": wide,
        "masked by a number": masked,
        "one": alone,
        "none": torch.full((vocab,), -torch.inf),
        "equal": torch.full((vocab,), 1.5),
        "three numbers": (levels[0] % 3).float(),
        "zeros": zeros,
        "neighbours": 1 + levels[1] * 2.0**-23,
    }


def hard_samplings(vocab: int) -> list[SamplingParams]:
    """Return sampling parameters for rows of `vocab` tokens."""
    changes: list[dict[str, Any]] = [
        {"top_k": 1},
        {"top_k": vocab - 1},
        {"top_k": 5, "top_p": 0.9},
        {"top_k": vocab // 2, "top_p": 0.5, "temperature": 1.5},
        {"top_k": vocab - 1, "top_p": 1 - 1e-12},
        {"top_k": 20, "temperature": 0.01},
        {"top_p": 1e-300},
        {"top_p": 1 - 2**-53},
        {"top_p": 0.5, "temperature": 0.01},
        {"top_p": 0.95, "temperature": 100.0, "min_p": 0.1},
        {"min_p": 0.1},
    ]
    return [SamplingParams(**{"temperature": 1.0, "seed": 1, **change}) for change in changes]


def processed(logits: Tensor, samplings: Sequence[SamplingParams], device: str = "cpu") -> Tensor:
    """Return rows [R, V] after `Processors`; each row is a sequence of its own."""
    count, vocab = logits.shape
    processors = Processors(count, vocab, torch.device(device))
    for sequence, sampling in enumerate(samplings):
        processors.set(sequence, sampling, [0], [])
    rows = torch.arange(count, device=device)
    scale = torch.tensor([1 / s.temperature if s.temperature else 0.0 for s in samplings])
    return processors.processed(logits.to(device), scale.to(device), Rows(rows, rows + 1))
