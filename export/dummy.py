"""Draft heads without a checkpoint: full geometry, random weights."""

from dataclasses import replace

import torch
from torch import nn

from eagle_aot.errors import SettingError
from eagle_aot.export.draft_config import DraftConfig
from eagle_aot.export.draft_geometry import read_geometry
from eagle_aot.export.draft_head import Eagle3Draft
from eagle_aot.export.draft_layout import read_layout
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.checkpoint import Checkpoint

MIN_LAYERS = 3

PUBLIC_HEADS = {
    # RedHatAI/gemma-4-31B-it-speculator.eagle3
    "gemma4-31b": DraftConfig(
        hidden_size=5376,
        target_hidden_size=5376,
        num_taps=3,
        vocab_size=262144,
        draft_vocab_size=32000,
        intermediate_size=21504,
        num_heads=32,
        num_kv_heads=16,
        head_dim=256,
        norm_before_residual=True,
        tap_layers=(2, 30, 57),
    ),
}


def dummy_draft(
    spec: TargetSpec, target: TapTarget, max_seq_len: int, dtype: torch.dtype
) -> Eagle3Draft:
    """A random head of the geometry that belongs to `spec`'s public or shipped one.

    It shares the target's embedding where the widths agree, as the public heads do.
    """
    draft = Eagle3Draft(_config(spec, target), max_seq_len, dtype).eval()
    if draft.embed_tokens.weight.shape == target.embed_weight.shape:
        draft.embed_tokens.weight = nn.Parameter(target.embed_weight, requires_grad=False)
    return draft


def _config(spec: TargetSpec, target: TapTarget) -> DraftConfig:
    num_layers = target.num_hidden_layers
    if spec.draft_dir is not None:
        config = read_geometry(read_layout(Checkpoint(spec.draft_dir), None), None)
    else:
        config = PUBLIC_HEADS[spec.name]
    if config.tap_layers and config.tap_layers[-1] <= num_layers:
        return config
    if num_layers < MIN_LAYERS:
        raise SettingError(
            f"--dummy-layers {num_layers}: the head taps 3 layers, so at least {MIN_LAYERS}"
        )
    quarters = (num_layers // 4, num_layers // 2, 3 * num_layers // 4)
    return replace(config, tap_layers=quarters)
