"""Attention among all patches of one picture, by an operator that a backend has.

transformers' layers call it by its name in their config, with whatever mask they were handed.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eagle_aot.targets.decoder.attention import MASKED
from eagle_aot.triton_kernels.sdpa_prompt import is_servable, sdpa_prompt
from eagle_aot.triton_kernels.sdpa_prompt.tiling import HEAD_DIMS

NAME = "eagle_aot_patches"


@dataclass(frozen=True, slots=True)
class Patches:
    """Which of N patches are there: bool [N], those that are in front of those that are not.

    With `streams_keys` layers attend through the operator that is made for prompts.
    """

    present: Tensor
    streams_keys: bool

    @property
    def mask(self) -> Tensor:
        """Additive, float32 [N]."""
        return torch.where(self.present, 0.0, MASKED)

    @property
    def last(self) -> Tensor:
        """The last one that is there, for each, int64 [N]."""
        count = self.present.sum(dim=0, keepdim=True)
        return (count - 1).expand(self.present.shape[0]).contiguous()


@cache
def registered() -> str:
    """The name that transformers knows it by from now on."""
    from transformers import AttentionInterface  # slow to import

    AttentionInterface.register(NAME, attend_patches)
    return NAME


def attend_patches(
    module: Any, q: Tensor, k: Tensor, v: Tensor, patches: Patches, scaling: float, **others: Any
) -> tuple[Tensor, None]:
    """`q`, `k`, `v` [1, heads, N, D] -> [1, N, heads, D]; every patch sees all that are there."""
    if patches.streams_keys and is_servable(q.shape[1], widened(k)[0]):
        return _streamed(q, k, v, patches, scaling), None
    scores = torch.bmm(q[0], k[0].transpose(1, 2)).float() * scaling + patches.mask
    mixed = torch.bmm(torch.softmax(scores, dim=-1).to(v.dtype), v[0])
    return mixed.transpose(0, 1).unsqueeze(0), None


def _streamed(q: Tensor, k: Tensor, v: Tensor, patches: Patches, scaling: float) -> Tensor:
    """The same with keys of one sequence in the slots of their positions."""
    rows = widened(q).transpose(1, 2)
    keys, values = (widened(x).transpose(0, 1) for x in (k, v))
    positions = torch.arange(q.shape[2], device=q.device)
    first = torch.zeros(1, dtype=torch.int64, device=q.device)
    found = sdpa_prompt(rows, keys, values, positions, first, scaling, 0, 0, patches.last)
    return found[..., : q.shape[-1]]


def widened(x: Tensor) -> Tensor:
    """[..., D] -> [..., W], zeros behind: the next width of heads that the operator has."""
    width = next((size for size in HEAD_DIMS if size >= x.shape[-1]), x.shape[-1])
    if width == x.shape[-1]:
        return x
    return torch.cat((x, x.new_zeros(*x.shape[:-1], width - x.shape[-1])), dim=-1)
