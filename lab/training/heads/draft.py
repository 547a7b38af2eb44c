"""A fresh head for a target: geometry, draft vocabulary, first weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from eagle_aot.export.drafters.dflash2.model import DFlash2Draft
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.reading.taps import default_tap_layers
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget
from eagle_aot.lab.training.heads.learned_mask import LearnedMask
from eagle_aot.targets.decoder.cached_attention import CachedAttention
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.rope import Rope

HeadDraft = Eagle3Draft | DFlash2Draft
NOT_CACHED = 1  # positions of the head's own cache, which training does not use


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSizes:
    """Sizes of a head; None means the target's own. `tap_layers` are boundaries.

    A DFlash2 head has the target's vocabulary; other heads have no block and no selector.
    """

    draft_vocab_size: int
    intermediate_size: int
    tap_layers: tuple[int, ...] | None = None
    num_layers: int = 1
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float = 10000.0
    block_size: int = 8
    selector_rank: int = 64


def draft_config(
    target: FrozenTarget, sizes: HeadSizes, mask_token_id: int | None = None
) -> DraftConfig:
    """Return the head's geometry, by default that of the target's first layer.

    A head with a mask token drafts in parallel. Raises PairingError for a target that is too small
    for taps at 2, n // 2 and n - 3.
    """
    facts, heads = target.facts, attention_sizes(target, sizes)
    taps = sizes.tap_layers or default_tap_layers(facts.num_hidden_layers).boundaries
    return DraftConfig(
        hidden_size=facts.hidden_size,
        target_hidden_size=facts.hidden_size,
        num_taps=len(taps),
        vocab_size=facts.vocab_size,
        draft_vocab_size=min(sizes.draft_vocab_size, facts.vocab_size),
        intermediate_size=sizes.intermediate_size,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        num_layers=sizes.num_layers,
        rope=Rope(theta=sizes.rope_theta),
        norm_before_residual=True,
        tap_layers=taps,
        mask_token_id=mask_token_id,
    )


def attention_sizes(target: FrozenTarget, sizes: HeadSizes) -> tuple[int, int, int]:
    """Return the query heads, key/value heads and width of a head's attention, by default those of
    the target's first layer."""
    attention = cast(CachedAttention, target.decoder.layers[0].get_submodule("self_attn"))
    return (
        sizes.num_heads or attention.heads,
        sizes.num_kv_heads or attention.kv_cache.k.shape[0],
        sizes.head_dim or attention.head_dim,
    )


def draft_vocabulary(counts: Tensor, size: int, always: Sequence[int]) -> Tensor:
    """Return the most frequent tokens and those of `always`, ascending target ids int64 [size].

    `counts` int64 [V] is how often each token occurs.
    """
    counts = counts.clone()
    counts[list(always)] += counts.sum()
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def build_draft(target: FrozenTarget, config: DraftConfig, target_ids: Tensor) -> Eagle3Draft:
    """Return a fresh head in float32 that shares the target's (frozen, unscaled) embedding rows."""
    model = Eagle3Draft if config.mask_token_id is None else LearnedMask
    draft = model(config, torch.float32, CacheSpec(NOT_CACHED, torch.float32)).to(target.device)
    for parameter in draft.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    ids = target_ids.to(target.device)
    with torch.no_grad():
        draft.embed_tokens.weight.copy_(target.facts.embed_weight)
        draft.lm_head.weight.copy_(target.facts.lm_head_weight[ids])
    draft.target_ids = ids
    draft.embed_tokens.requires_grad_(False)
    return draft
