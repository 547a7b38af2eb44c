"""A tower's weights, from a checkpoint or random."""

import torch

from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.decoder.weights import assign, check_sizes, load_weights
from eagle_aot.targets.gemma4.vision.config import VisionConfig
from eagle_aot.targets.gemma4.vision.tower import Gemma4Vision

PREFIX = "model."
READ = (f"{PREFIX}vision_tower.", f"{PREFIX}embed_vision.")
LEFT_OVER = f"{PREFIX}embed_vision.embedding."
"""A table that some files have and nothing reads."""


def load_vision(checkpoint: Checkpoint, text_width: int, dtype: torch.dtype) -> Gemma4Vision:
    """The tower and projector of `checkpoint` on the host, for embeddings of `text_width`.

    Raises UnsupportedError for one that is not read, CheckpointError for damage.
    """
    vision = Gemma4Vision(VisionConfig.from_hf(checkpoint.config), text_width)
    check_sizes(vision, checkpoint, PREFIX)
    others = (name for name in checkpoint.names() if not name.startswith(READ))
    load_weights(vision, checkpoint, PREFIX, (*others, LEFT_OVER), dtype)
    return vision.eval()


def dummy_vision(config: VisionConfig, text_width: int, dtype: torch.dtype) -> Gemma4Vision:
    """Random weights, of a size that keeps every stage at about unit variance."""
    vision = Gemma4Vision(config, text_width)
    for name, like in vision.state_dict().items():
        scale = like.shape[-1] ** -0.5 if like.ndim > 1 else 0.1
        assign(vision, name, torch.randn(like.shape, dtype=dtype) * scale + (like.ndim == 1))
    return vision.eval()
