"""DFlash2 heads as a kind that is trained: fresh ones, their loss, their files.

What a head starts as: convolutions that change nothing, and a selector that adds nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from eagle_aot.export.drafters.dflash.checkpoint import parameter_shapes
from eagle_aot.export.drafters.dflash.kind import sizes as geometry_of
from eagle_aot.export.drafters.dflash2 import checkpoint as files
from eagle_aot.export.drafters.dflash2.kind import dummy_config, load
from eagle_aot.export.drafters.dflash2.model import BlockConvolution, DFlash2Config, DFlash2Draft
from eagle_aot.export.drafters.head_tensors import OUTPUT_TABLE, TABLES
from eagle_aot.lab.training.heads.blocks import BlockLoss, block_choices
from eagle_aot.lab.training.heads.corpus import Batch, Corpus
from eagle_aot.lab.training.heads.draft import (
    NOT_CACHED,
    HeadDraft,
    HeadSizes,
    attention_sizes,
)
from eagle_aot.lab.training.heads.frozen_target import FrozenTarget
from eagle_aot.lab.training.heads.learned_mask import rarest_token
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.rope import Rope
from eagle_aot.targets.decoder.weights import assign
from eagle_aot.targets.pre_norm.config import SLIDING

if TYPE_CHECKING:
    from eagle_aot.lab.training.heads.run import Run

WEIGHT = ".weight"


def fresh(run: "Run", corpus: Corpus) -> DFlash2Draft:
    """Return a head whose mask token is in no text."""
    mask = rarest_token(corpus.token_counts(run.target.facts.vocab_size))
    return build(run.target, head_config(run.target, run.sizes, mask))


def head_config(target: FrozenTarget, sizes: HeadSizes, mask_token_id: int) -> DFlash2Config:
    """Return the geometry of published heads with `sizes`, and by default the target's attention.

    All layers are sliding and see both ways.
    """
    config = dummy_config(target.facts)
    heads, kv_heads, head_dim = attention_sizes(target, sizes)
    layers = replace(
        config.layers,
        intermediate_size=sizes.intermediate_size,
        layer_types=(SLIDING,) * sizes.num_layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rope=Rope(theta=sizes.rope_theta),
    )
    return replace(
        config,
        layers=layers,
        tap_layers=sizes.tap_layers or config.tap_layers,
        block_size=sizes.block_size,
        mask_token_id=mask_token_id,
        selector_rank=sizes.selector_rank,
    )


def build(target: FrozenTarget, config: DFlash2Config) -> DFlash2Draft:
    """Return a fresh head in float32 that shares the target's (frozen, unscaled) tables."""
    draft = DFlash2Draft(config, torch.float32, CacheSpec(NOT_CACHED, torch.float32))
    draft.check_target(target.facts)
    for name, shape in parameter_shapes(draft).items():
        if name not in TABLES and len(shape) == 2:
            assign(draft, name, torch.empty(shape).normal_(std=0.02))
    for module in draft.modules():
        if isinstance(module, BlockConvolution):
            module.base_kernel[:, 0] = 1.0
            nn.init.zeros_(module.kernel_projection.weight)
    nn.init.zeros_(draft.candidate_selector.successor_codebook.weight)
    nn.init.normal_(draft.candidate_selector.predecessor_codebook.weight)
    draft.requires_grad_(True)
    draft.embed_tokens.weight = nn.Parameter(target.facts.embed_weight.float(), False)
    draft.lm_head.weight = nn.Parameter(target.facts.lm_head_weight, False)
    return draft.to(target.device)


def loss(draft: HeadDraft, target: FrozenTarget, compiled: bool) -> Callable[[Batch], Tensor]:
    """Return the loss of a batch."""
    assert isinstance(draft, DFlash2Draft)
    return BlockLoss(draft, target, compiled)


def choices(
    draft: HeadDraft, target: FrozenTarget, batch: Batch, chain_lens: Sequence[int]
) -> dict[int, Tensor]:
    """Return the first drafts of blocks, as `HeadTraining` says. A block has as many rows as in
    training, or more for more drafts, as in the runner."""
    assert isinstance(draft, DFlash2Draft)
    trained = draft.config.block_size - 1
    blocks: dict[int, Tensor] = {}
    for count in {max(trained, length) for length in chain_lens}:
        blocks[count] = block_choices(draft, target, batch, count)
    return {length: blocks[max(trained, length)][:length] for length in chain_lens}


def tensors(draft: HeadDraft) -> dict[str, Tensor]:
    """Return all parameters but the output table, which is always the target's."""
    names = {f"{name}{WEIGHT}": name for name in files.CODEBOOKS}
    return {
        names.get(name, name): tensor
        for name, tensor in draft.named_parameters()
        if name != OUTPUT_TABLE
    }


def config(draft: HeadDraft, max_position_embeddings: int) -> dict[str, Any]:
    """Return what is a DFlash2 head's own in the config of speculators' layout."""
    assert isinstance(draft, DFlash2Draft)
    head = draft.config
    return {
        "architectures": [files.CLASS],
        "speculators_model_type": files.SPECULATORS_TYPE,
        "draft_vocab_size": head.vocab_size,
        "target_hidden_size": head.target_hidden_size,
        "aux_hidden_state_layer_ids": list(head.tap_layers),
        "block_size": head.block_size,
        "mask_token_id": head.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": not head.causal_windows,
        "conv_kernel_size": head.conv_kernel_size,
        "conv_group_size": head.conv_group_size,
        "selector_rank": head.selector_rank,
        "selector_top_k": head.selector_top_k,
        "transformer_layer_config": _layer_config(head, max_position_embeddings),
    }


def _layer_config(head: DFlash2Config, max_position_embeddings: int) -> dict[str, Any]:
    layers = head.layers
    return {
        "model_type": "qwen3",
        "hidden_size": layers.hidden_size,
        "intermediate_size": layers.intermediate_size,
        "num_hidden_layers": len(layers.layer_types),
        "layer_types": list(layers.layer_types),
        "use_sliding_window": True,
        "sliding_window": layers.sliding_window,
        "num_attention_heads": layers.num_attention_heads,
        "num_key_value_heads": layers.num_key_value_heads,
        "head_dim": layers.head_dim,
        "vocab_size": layers.vocab_size,
        "rms_norm_eps": layers.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": max_position_embeddings,
        "rope_parameters": {"rope_type": "default", "rope_theta": layers.rope.theta},
    }


def read(checkpoint: Checkpoint, target: TapTarget) -> DFlash2Draft:
    """Load a head that was written here."""
    caches = CacheSpec(NOT_CACHED, torch.float32)
    draft, _ = load(checkpoint, target, torch.float32, caches, None)
    assert isinstance(draft, DFlash2Draft)
    return draft


def geometry(draft: HeadDraft) -> dict[str, Any]:
    """Return the sizes that a training's record has."""
    assert isinstance(draft, DFlash2Draft)
    return geometry_of(draft.config)
