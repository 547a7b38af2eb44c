"""What a target makes of pictures in its prompts: who reads them, and what stands for them."""

from dataclasses import dataclass

import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.gemma4.config import GEMMA4_31B, MODEL_TYPES
from eagle_aot.targets.gemma4.vision import (
    GEMMA4_PICTURES,
    GEMMA4_VISION,
    Gemma4Vision,
    PictureTokens,
    VisionConfig,
    dummy_vision,
    load_vision,
    sees_pictures_whole,
)
from eagle_aot.targets.protocol import TapTarget

SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Budgets of a picture that the models are trained for: the most that it takes of a prompt."""

DUMMIES: dict[str, tuple[VisionConfig, PictureTokens]] = {
    "gemma4-31b": (GEMMA4_VISION, GEMMA4_PICTURES)
}
"""Lines of the table of targets that there are random towers for, and what those are like."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """`encoder` makes rows of a prompt of them. With `sees_whole`, these see one another both ways
    in the target's sliding layers, else they are as causal as all others."""

    encoder: Gemma4Vision
    tokens: PictureTokens
    sees_whole: bool


def load_pictures(checkpoint: Checkpoint, target: TapTarget, dtype: torch.dtype) -> Pictures:
    """Those of a checkpoint whose text decoder is `target`, on the host.

    Raises UnsupportedError where it reads none, CheckpointError for damage.
    """
    config = checkpoint.config
    if (kind := config.text("model_type")) not in MODEL_TYPES:
        raise UnsupportedError(
            f"{checkpoint.directory}: --inputs text,image: model_type {kind!r} reads no pictures, "
            "Gemma 4 does"
        )
    tokens = PictureTokens.from_hf(config, target.vocab_size)
    encoder = load_vision(checkpoint, target.hidden_size, dtype)
    return Pictures(encoder, tokens, sees_pictures_whole(config))


def dummy_pictures(name: str, target: TapTarget, dtype: torch.dtype) -> Pictures:
    """Of a target with random weights. Raises UnsupportedError where no tower is known."""
    if name not in DUMMIES:
        known = ", ".join(DUMMIES)
        raise UnsupportedError(f"--inputs text,image: no tower of {name} is known, but of {known}")
    assert target.hidden_size == GEMMA4_31B.hidden_size
    config, tokens = DUMMIES[name]
    return Pictures(dummy_vision(config, target.hidden_size, dtype), tokens, sees_whole=True)
