"""Read the checkpoint of a pre-norm decoder."""

from collections.abc import Callable

import torch

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import check_sizes, load_weights, stored_again
from eagle_aot.targets.pre_norm.config import PreNormConfig
from eagle_aot.targets.pre_norm.model import PreNormDecoder

PREFIX = "model."
COMPUTED = ".rotary_emb.inv_freq"
"""How the names of tables end that old checkpoints store and every reader computes."""


def load_pre_norm(
    read_config: Callable[[ConfigSection], PreNormConfig],
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    caches: CacheSpec,
) -> PreNormDecoder:
    """The decoder of `checkpoint` on the host, INT4 where the checkpoint is INT4."""
    config = read_config(checkpoint.config)
    unused = tuple(name for name in checkpoint.names() if name.endswith(COMPUTED))
    if config.tie_word_embeddings:
        unused += stored_again(checkpoint, PREFIX)
    with torch.device("meta"):
        check_sizes(PreNormDecoder(config, dtype, caches), checkpoint, PREFIX)
    target = PreNormDecoder(config, dtype, caches)
    load_weights(target, checkpoint, PREFIX, unused, dtype)
    return target.eval()
