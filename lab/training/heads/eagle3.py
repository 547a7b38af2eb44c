"""EAGLE-3 and P-EAGLE heads as kinds that are trained: fresh ones, their loss, their files."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eagle_aot.artifact import P_EAGLE
from eagle_aot.export.drafters.eagle3.kind import geometry as geometry_of
from eagle_aot.export.drafters.eagle3.load import COMPUTED, load_layout
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.export.drafters.eagle3.reading.names import MASK_HIDDEN
from eagle_aot.export.drafters.registry import name_of_kind
from eagle_aot.lab.training.heads.chains import TTT_STEPS, ChainLoss, chain_choices, read_labels
from eagle_aot.lab.training.heads.corpus import Batch, Corpus
from eagle_aot.lab.training.heads.draft import (
    NOT_CACHED,
    HeadDraft,
    build_draft,
    draft_config,
    draft_vocabulary,
)
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget
from eagle_aot.lab.training.heads.learned_mask import LearnedMask, rarest_token, thinned_anchors
from eagle_aot.lab.training.loop import autocast
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec

if TYPE_CHECKING:
    from eagle_aot.lab.training.heads.run import Run


def fresh(run: "Run", corpus: Corpus) -> Eagle3Draft:
    """Return a head with the answers' vocabulary, and a mask token that is in no text."""
    size = run.target.facts.vocab_size
    mask = rarest_token(corpus.token_counts(size)) if run.spec.drafter == P_EAGLE else None
    config = draft_config(run.target, run.sizes, mask)
    target_ids = draft_vocabulary(corpus.answer_counts(size), config.draft_vocab_size, run.stop_ids)
    return build_draft(run.target, config, target_ids)


def loss(draft: HeadDraft, target: FrozenTarget, compiled: bool) -> Callable[[Batch], Tensor]:
    """Return the loss of a batch by EAGLE-3's training-time test."""
    assert isinstance(draft, Eagle3Draft)
    chain_loss = ChainLoss(draft, compiled)

    def loss_of(batch: Batch) -> Tensor:
        taps, labels = read_labels(target, draft, batch)
        with autocast(target.device):
            return chain_loss(batch.tokens, taps, labels, _thinned(draft, batch))

    return loss_of


def _thinned(draft: Eagle3Draft, batch: Batch) -> list[Tensor] | None:
    """Return the anchors of each step of a head with a mask, other ones for every batch."""
    if not isinstance(draft, LearnedMask):
        return None
    return thinned_anchors(batch.tokens.shape[1], TTT_STEPS, batch.number, batch.tokens.device)


@torch.no_grad()
def choices(
    draft: HeadDraft, target: FrozenTarget, batch: Batch, chain_lens: Sequence[int]
) -> dict[int, Tensor]:
    """Return the drafts of chains, as `HeadTraining` says: a shorter one begins as a longer one."""
    assert isinstance(draft, Eagle3Draft)
    _, taps = target.read(batch.tokens, draft.tap_layers)
    with autocast(target.device):
        longest = torch.stack(list(chain_choices(draft, batch.tokens, taps, max(chain_lens))))
    return {length: longest[:length] for length in chain_lens}


def tensors(draft: HeadDraft) -> dict[str, Tensor]:
    """Return the parameters that a file has, `d2t` and `t2d`."""
    assert isinstance(draft, Eagle3Draft)
    stored = {
        name: parameter.detach()
        for name, parameter in draft.named_parameters()
        if name not in COMPUTED
    }
    if draft.config.mask_token_id is not None:
        assert isinstance(draft, LearnedMask), "what has been loaded has no taps of its mask"
        stored[MASK_HIDDEN] = stored[MASK_HIDDEN].view(1, 1, -1)
    target_ids = draft.target_ids.cpu()
    stored["d2t"] = target_ids - torch.arange(len(target_ids))
    stored["t2d"] = torch.zeros(draft.config.vocab_size, dtype=torch.bool)
    stored["t2d"][target_ids] = True
    return stored


def config(draft: HeadDraft, max_position_embeddings: int) -> dict[str, Any]:
    """Return what is a head's own in the config of speculators' layout."""
    assert isinstance(draft, Eagle3Draft)
    head = draft.config
    parallel = head.mask_token_id is not None
    return {
        "architectures": ["PEagleDraftModel" if parallel else "Eagle3DraftModel"],
        "speculators_model_type": "peagle" if parallel else "eagle3",
        "draft_vocab_size": head.draft_vocab_size,
        "target_hidden_size": head.target_hidden_size,
        "norm_before_residual": head.norm_before_residual,
        "norm_before_fc": head.norm_before_fc,
        "norm_output": head.norm_output,
        "eagle_aux_hidden_state_layer_ids": list(head.tap_layers),
        "transformer_layer_config": _layer_config(draft, max_position_embeddings),
        **({"mask_token_id": head.mask_token_id} if parallel else {}),
    }


def _layer_config(draft: Eagle3Draft, max_position_embeddings: int) -> dict[str, Any]:
    head = draft.config
    return {
        "model_type": "llama",
        "hidden_size": head.hidden_size,
        "intermediate_size": head.intermediate_size,
        "num_hidden_layers": len(draft.layers),
        "num_attention_heads": head.num_heads,
        "num_key_value_heads": head.num_kv_heads,
        "head_dim": head.head_dim,
        "vocab_size": head.vocab_size,
        "rms_norm_eps": head.rms_norm_eps,
        "hidden_act": head.hidden_act,
        "attention_bias": head.attention_bias,
        "mlp_bias": head.mlp_bias,
        "max_position_embeddings": max_position_embeddings,
        "rope_theta": head.rope.theta,
        "rope_scaling": None,
    }


def read(checkpoint: Checkpoint, target: TapTarget) -> Eagle3Draft:
    """Load a head of either kind that was written here."""
    layout = read_layout(checkpoint, None, parallel=name_of_kind(checkpoint) == P_EAGLE)
    return load_layout(layout, target, torch.float32, CacheSpec(NOT_CACHED, torch.float32))


def geometry(draft: HeadDraft) -> dict[str, Any]:
    """Return the sizes that a training's record has."""
    assert isinstance(draft, Eagle3Draft)
    return geometry_of(draft.config)
