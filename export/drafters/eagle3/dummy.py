"""Draft heads without a checkpoint: full geometry, random weights."""

from dataclasses import replace

import torch
from torch import nn

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.parallel import ParallelDraft, new_draft
from eagle_aot.export.drafters.eagle3.reading.geometry import read_geometry
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.pre_norm.model import PreNormDecoder

MIN_LAYERS = 3

PUBLIC_DRAFT_VOCAB = 32000
PARALLEL_LAYERS = 4


def dummy_draft(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> Eagle3Draft:
    """A random head of the geometry of `spec`'s shipped one, or of most public ones.

    It shares the target's embedding where the widths agree, as the public heads do.
    """
    return _random(_config(spec, target), target, dtype, caches)


def dummy_parallel(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> Eagle3Draft:
    """The same, of as many layers as heads have that draft in parallel."""
    mask = target.vocab_size - 1
    config = replace(_config(spec, target), num_layers=PARALLEL_LAYERS, mask_token_id=mask)
    return _random(config, target, dtype, caches)


def _random(
    config: DraftConfig, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> Eagle3Draft:
    draft = new_draft(config, dtype, caches).eval()
    if isinstance(draft, ParallelDraft):
        draft.set_mask(torch.randn(draft.fc.in_features, dtype=dtype))
    table = target.embed_weight
    if draft.embed_tokens.weight.shape == table.shape:
        assert isinstance(table, nn.Parameter)  # the same one, or it would be moved twice
        draft.embed_tokens.weight = table
    return draft


def _config(spec: TargetSpec, target: TapTarget) -> DraftConfig:
    num_layers = target.num_hidden_layers
    if spec.draft_dir is not None:
        config = read_geometry(read_layout(Checkpoint(spec.draft_dir), None), None)
    else:
        config = _public(target)
    if config.tap_layers and config.tap_layers[-1] <= num_layers:
        return config
    return replace(config, tap_layers=_taps(num_layers))


def _taps(num_layers: int) -> tuple[int, ...]:
    """Where public heads tap, or at the quarters of a target that is cut too short for that."""
    if num_layers < MIN_LAYERS:
        raise SettingError(
            f"--dummy-layers {num_layers}: the head taps 3 layers, so at least {MIN_LAYERS}"
        )
    if num_layers - 3 > num_layers // 2 > 2:
        return (2, num_layers // 2, num_layers - 3)
    return (num_layers // 4, num_layers // 2, 3 * num_layers // 4)


def _public(target: TapTarget) -> DraftConfig:
    """Public heads repeat their target's layer, with a vocabulary of the most frequent tokens.

    So do RedHatAI/gemma-4-31B-it-speculator.eagle3, yuhuili/EAGLE3-LLaMA3.1-Instruct-8B and
    AngelSlim/Qwen3-*_eagle3.
    """
    assert isinstance(target, Gemma4Target | PreNormDecoder)
    layer = target.config
    return DraftConfig(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        num_taps=3,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(PUBLIC_DRAFT_VOCAB, target.vocab_size),
        intermediate_size=layer.intermediate_size,
        num_heads=layer.num_attention_heads,
        num_kv_heads=layer.num_key_value_heads,
        head_dim=layer.head_dim,
        norm_before_residual=True,
    )
