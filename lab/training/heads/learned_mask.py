"""A P-EAGLE head in training: the mask is learned with the head, and deep drafts are thinned out.

Its drafts are the chains of an EAGLE-3 head in which every slot after the committed one is a mask
(`ParallelDraft.next_inputs`), at the same position, and sees the same slots.
"""

import torch
from torch import Tensor, nn

from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.model import ParallelDraft
from eagle_aot.targets.decoder.kv_cache import CacheSpec

KEPT, LEAST_KEPT = 0.7, 0.2
"""The share of a step's anchors that the next one rehearses too, and the smallest share of all:
those of speculators' training (its `down_sample_ratio`). Seven steps are then 3.2 rows a token
instead of 7, so four layers cost what one costs that rehearses all."""


class LearnedMask(ParallelDraft):
    """`mask_hidden` [num_taps * Ht]: the taps of a position that the target has not read.

    `mask_feature`, which is made of it when a head is loaded, is not used.
    """

    def __init__(self, config: DraftConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, dtype, caches)
        self.mask_hidden = nn.Parameter(torch.empty(self.fc.in_features, dtype=dtype))
        nn.init.normal_(self.mask_hidden, std=0.02)

    def next_inputs(self, embedding: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        masks = torch.full(feature.shape[:2], self.mask_token, device=feature.device)
        mask = self.fuse(self.mask_hidden.view(1, 1, -1))
        return self.embed(masks), mask.expand(*feature.shape)


def rarest_token(counts: Tensor) -> int:
    """Return the id of the mask token: the last of those that occur least.

    `counts` int64 [V] is how often each token occurs. Tokens that no text holds are usually the
    last of a vocabulary. A real token with the mask's id differs from it by its features.
    """
    return int((counts == counts.min()).nonzero()[-1])


def thinned_anchors(columns: int, steps: int, seed: int, device: torch.device) -> list[Tensor]:
    """The anchors that each step rehearses, int64 [A] each: all in their order, then fewer and
    fewer of one random order of them. Drawn from `seed`.

    Conditional drop, as P-EAGLE takes it from PARD: a mask sees the masks before it, so an anchor
    that a step leaves out is left out by all later ones.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(columns, generator=generator).to(device, non_blocking=True)
    shares = (max(KEPT**step, LEAST_KEPT) for step in range(1, steps))
    thinned = [order[: max(1, round(columns * share))] for share in shares]
    return [torch.arange(columns, device=device), *thinned]
