"""P-EAGLE: an EAGLE-3 head that is trained to draft without its own drafts, all of them at once.

Behind the committed slots it runs slots of which neither token nor feature is known: each has the
mask token's embedding and one learned feature, at the next position, and says what token is two
places further, as any slot does. Layout and math as in vLLM's `llama_eagle3.py` and
`llm_base_proposer.py`.
"""

import torch
from torch import Tensor, nn

from eagle_aot.artifact import MASK, P_EAGLE
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.targets.decoder.kv_cache import CacheSpec


class ParallelDraft(Eagle3Draft):
    """An EAGLE-3 head with a mask. `mask_feature` [1, 1, H] is what `fuse` makes of its taps."""

    kind = P_EAGLE

    def __init__(self, config: DraftConfig, dtype: torch.dtype, caches: CacheSpec) -> None:
        super().__init__(config, dtype, caches)
        zeros = torch.zeros(1, 1, config.hidden_size, dtype=dtype)
        self.mask_feature = nn.Parameter(zeros, requires_grad=False)

    @property
    def mask_token(self) -> int:
        """The target's token that stands for one that is not known."""
        assert self.config.mask_token_id is not None
        return self.config.mask_token_id

    @torch.no_grad()
    def set_mask(self, taps: Tensor) -> None:
        """`taps` are one row of them, num_taps * Ht values in any shape."""
        self.mask_feature.copy_(self.fuse(taps.reshape(1, 1, -1)))

    def unmasked(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Slots as `run` takes them: tokens int64 [B, T], and the mask's where they are `MASK`;
        features [B, T, H]. Returns the embeddings [B, T, H] and the features."""
        unknown = tokens == MASK
        embedding = self.embed(torch.where(unknown, self.mask_token, tokens))
        return embedding, torch.where(unknown.unsqueeze(-1), self.mask_feature, features)

    def further(self, embedding: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.full(feature.shape[:2], MASK, device=feature.device)
        return self.unmasked(mask, feature)


def new_draft(config: DraftConfig, dtype: torch.dtype, caches: CacheSpec) -> Eagle3Draft:
    """A head to be filled, of either kind."""
    model = Eagle3Draft if config.mask_token_id is None else ParallelDraft
    return model(config, dtype, caches)
