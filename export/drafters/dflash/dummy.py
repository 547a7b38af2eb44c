"""DFlash heads without a checkpoint: full geometry, random weights."""

import torch
from torch import nn

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.dflash.config import DFlashConfig
from eagle_aot.export.drafters.dflash.load import TABLES, own_shapes
from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.rope import Rope
from eagle_aot.targets.decoder.weights import assign
from eagle_aot.targets.pre_norm.config import FULL, SLIDING, PreNormConfig

LAYERS = (SLIDING,) * 4 + (FULL,)
HEADS, KV_HEADS, HEAD_DIM, WINDOW, BLOCK = 32, 8, 128, 2048, 16
INNER = 17408
"""Of z-lab's head for Qwen3.6-27B, whose width is the target's; of a small target's at most what
that allows."""
TAPS = 5


def dummy_dflash(target: TapTarget, dtype: torch.dtype, caches: CacheSpec) -> DFlashDraft:
    """A random head that shares the target's tables, as the public ones do."""
    draft = DFlashDraft(_config(target), dtype, caches)
    for name, shape in own_shapes(draft).items():
        if name not in TABLES and len(shape) > 1:
            rows = torch.randn(shape, dtype=dtype) * shape[-1] ** -0.5
            assign(draft, name, rows)
    assert isinstance(target.embed_weight, nn.Parameter)  # the same one, or it would be moved twice
    draft.embed_tokens.weight = target.embed_weight
    table = target.lm_head_weight
    draft.lm_head.weight = table if isinstance(table, nn.Parameter) else nn.Parameter(table, False)
    return draft.eval()


def _config(target: TapTarget) -> DFlashConfig:
    hidden = target.hidden_size
    heads = max(min(HEADS, hidden // HEAD_DIM), 1)
    layers = PreNormConfig(
        vocab_size=target.vocab_size,
        hidden_size=hidden,
        intermediate_size=min(INNER, 4 * hidden),
        layer_types=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // (HEADS // KV_HEADS), 1),
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        rope=Rope(theta=1e7),
        tie_word_embeddings=False,
        qk_norm=True,
        sliding_window=WINDOW,
    )
    return DFlashConfig(
        layers=layers,
        target_hidden_size=hidden,
        tap_layers=_taps(target.num_hidden_layers),
        draft_vocab_size=target.vocab_size,
        block_size=BLOCK,
        mask_token_id=target.vocab_size - 1,
    )


def _taps(num_layers: int) -> tuple[int, ...]:
    """Evenly from the second layer to the fourth last, as the public heads have them."""
    if num_layers < TAPS + 4:
        taps = tuple(range(1, num_layers))[:TAPS]
        if not taps:
            raise SettingError("--drafter dflash: a target of one layer has nothing to tap")
        return taps
    return tuple(2 + round(i * (num_layers - 5) / (TAPS - 1)) for i in range(TAPS))
