"""Read a Gemma 4 checkpoint, from the multimodal or from the text layout."""

from dataclasses import replace

import torch

from eagle_aot.common.errors import CheckpointError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import LM_HEAD, check_sizes, load_weights, stored_again
from eagle_aot.targets.gemma4.config import Gemma4Config
from eagle_aot.targets.gemma4.model import Gemma4Target

PREFIXES = ("model.language_model.", "model.", "")
"""Of the multimodal layout, of the text layout, and of ExecuTorch's quantised checkpoints."""
NOT_TEXT = tuple(
    f"model.{part}." for part in ("vision_tower", "embed_vision", "audio_tower", "embed_audio")
)


def load_gemma4(checkpoint: Checkpoint, dtype: torch.dtype, caches: CacheSpec) -> Gemma4Target:
    """The decoder of `checkpoint` on the host, INT4 where the checkpoint is INT4."""
    config = Gemma4Config.from_hf(checkpoint.config)
    prefix = name_prefix(checkpoint)
    unused = NOT_TEXT
    if checkpoint.int4(LM_HEAD) is not None:  # tied before each table was quantised in its way
        config = replace(config, tie_word_embeddings=False)
    if config.tie_word_embeddings:
        unused += stored_again(checkpoint, prefix)
    with torch.device("meta"):
        check_sizes(Gemma4Target(config, dtype, caches), checkpoint, prefix)
    target = Gemma4Target(config, dtype, caches)
    load_weights(target, checkpoint, prefix, unused, dtype)
    return target.eval()


def name_prefix(checkpoint: Checkpoint) -> str:
    """What stands before `embed_tokens.weight` in this checkpoint's tensor names."""
    for prefix in PREFIXES:
        if f"{prefix}embed_tokens.weight" in checkpoint:
            return prefix
    raise CheckpointError(f"{checkpoint.directory}: no {PREFIXES[0]}embed_tokens.weight")
