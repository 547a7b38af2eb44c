"""Attention among all patches of one image, by an operator that a backend has.

transformers' layers look it up by the name in their config and pass it the mask that they got.
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
class PresentPatches:
    """Which of N patches are present: bool [N], present ones first.

    With `use_prompt_kernel` layers attend through the operator for prompts.
    """

    present: Tensor
    use_prompt_kernel: bool

    @property
    def mask(self) -> Tensor:
        """Additive mask of the patches, float32 [N]."""
        return torch.where(self.present, 0.0, MASKED)

    @property
    def last(self) -> Tensor:
        """The index of the last present patch, repeated for each patch: int64 [N]."""
        count = self.present.sum(dim=0, keepdim=True)
        return (count - 1).expand(self.present.shape[0]).contiguous()


@cache
def register_attention() -> str:
    """Register `attend_patches` with transformers and return its name there."""
    from transformers import AttentionInterface  # slow to import

    AttentionInterface.register(NAME, attend_patches)
    return NAME


def attend_patches(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    patches: PresentPatches,
    scaling: float,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attend with `q`, `k`, `v` [1, heads, N, D] to all present patches: [1, N, heads, D]."""
    if patches.use_prompt_kernel and is_servable(q.shape[1], widen(k)[0]):
        return _attend_with_operator(q, k, v, patches, scaling), None
    scores = torch.bmm(q[0], k[0].transpose(1, 2)).float() * scaling + patches.mask
    mixed = torch.bmm(torch.softmax(scores, dim=-1).to(v.dtype), v[0])
    return mixed.transpose(0, 1).unsqueeze(0), None


def _attend_with_operator(
    q: Tensor, k: Tensor, v: Tensor, patches: PresentPatches, scaling: float
) -> Tensor:
    """Attend as `attend_patches` does, with the patches as one sequence of a cache."""
    rows = widen(q).transpose(1, 2)
    keys, values = (widen(x).transpose(0, 1) for x in (k, v))
    positions = torch.arange(q.shape[2], device=q.device)
    first = torch.zeros(1, dtype=torch.int64, device=q.device)
    attended = sdpa_prompt(rows, keys, values, positions, first, scaling, 0, 0, patches.last)
    return attended[..., : q.shape[-1]]


def widen(x: Tensor) -> Tensor:
    """Pad [..., D] with zeros to [..., W], the next head dimension that the operator has."""
    width = next((size for size in HEAD_DIMS if size >= x.shape[-1]), x.shape[-1])
    if width == x.shape[-1]:
        return x
    return torch.cat((x, x.new_zeros(*x.shape[:-1], width - x.shape[-1])), dim=-1)
