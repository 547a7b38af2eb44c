"""Read a Gemma 4 checkpoint, from the multimodal or from the text layout."""

import torch

from eagle_aot.errors import CheckpointError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import load_weights
from eagle_aot.targets.gemma4.config import Gemma4Config
from eagle_aot.targets.gemma4.model import Gemma4Target
from eagle_aot.targets.int4.compressed_tensors import check_quantization_config

PREFIXES = ("model.language_model.", "model.")
NOT_TEXT = tuple(
    f"model.{part}." for part in ("vision_tower", "embed_vision", "audio_tower", "embed_audio")
)


def load_gemma4(checkpoint: Checkpoint, max_seq_len: int, dtype: torch.dtype) -> Gemma4Target:
    """The decoder of `checkpoint` on the host, INT4 where the checkpoint is INT4."""
    if checkpoint.config.has("quantization_config"):
        check_quantization_config(checkpoint.config.section("quantization_config"))
    config = Gemma4Config.from_hf(checkpoint.config)
    prefix = name_prefix(checkpoint)
    unused = NOT_TEXT
    if config.tie_word_embeddings and "lm_head.weight" in checkpoint:
        _check_tied(checkpoint, prefix)
        unused += ("lm_head.weight",)
    target = Gemma4Target(config, max_seq_len, dtype)
    load_weights(target, checkpoint, prefix, unused, dtype)
    return target.eval()


def name_prefix(checkpoint: Checkpoint) -> str:
    """What stands before `embed_tokens.weight` in this checkpoint's tensor names."""
    for prefix in PREFIXES:
        if f"{prefix}embed_tokens.weight" in checkpoint:
            return prefix
    raise CheckpointError(f"{checkpoint.directory}: no {PREFIXES[0]}embed_tokens.weight")


def _check_tied(checkpoint: Checkpoint, prefix: str) -> None:
    """Quantised releases store the tied output table a second time; it must be the same table."""
    table = checkpoint.tensor(f"{prefix}embed_tokens.weight")
    if not torch.equal(table, checkpoint.tensor("lm_head.weight")):
        raise CheckpointError(
            f"{checkpoint.directory}: config.json ties the embeddings, "
            "but lm_head.weight differs from embed_tokens.weight"
        )
