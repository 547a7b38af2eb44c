"""What a target needs to read images in its prompts."""

from dataclasses import dataclass

import torch

from eagle_aot.common.errors import UnsupportedError
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.gemma4.config import GEMMA4_31B, MODEL_TYPES
from eagle_aot.targets.gemma4.vision import (
    GEMMA4_IMAGE_TOKENS,
    GEMMA4_VISION,
    Gemma4Vision,
    ImageTokens,
    VisionConfig,
    dummy_vision,
    has_bidirectional_images,
    load_vision,
)
from eagle_aot.targets.protocol import TapTarget

SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Maximum soft tokens of an image, as the models are trained: what it may take of a prompt."""

DUMMIES: dict[str, tuple[VisionConfig, ImageTokens]] = {
    "gemma4-31b": (GEMMA4_VISION, GEMMA4_IMAGE_TOKENS)
}
"""Vision geometry and token ids by the names of targets that have random vision towers."""


@dataclass(frozen=True, slots=True)
class ImageSupport:
    """The encoder that turns images into prompt rows, and the token ids that stand for them.

    With `bidirectional` the rows of an image see each other in both directions in the target's
    sliding layers; otherwise they are causal like all other rows.
    """

    encoder: Gemma4Vision
    tokens: ImageTokens
    bidirectional: bool


def load_images(checkpoint: Checkpoint, target: TapTarget, dtype: torch.dtype) -> ImageSupport:
    """Load the image support of the checkpoint whose text decoder is `target`, on the host.

    Raises UnsupportedError if the model reads no images, CheckpointError for damage.
    """
    config = checkpoint.config
    _check_reads_images(config, str(checkpoint.directory))
    tokens = ImageTokens.from_hf(config, target.vocab_size)
    encoder = load_vision(checkpoint, target.hidden_size, dtype)
    return ImageSupport(encoder, tokens, has_bidirectional_images(config))


def _check_reads_images(config: ConfigSection, where: str) -> None:
    """Raise UnsupportedError if the model of a config reads no images."""
    if (model_type := config.text("model_type")) not in MODEL_TYPES:
        raise UnsupportedError(
            f"{where}: --inputs text,image: model_type {model_type!r} reads no images, Gemma 4 does"
        )


def dummy_images(
    name: str, target: TapTarget, dtype: torch.dtype, config: ConfigSection | None = None
) -> ImageSupport:
    """Make random image support for a dummy target, in the geometry of a `config` or of a
    registered target. Raises UnsupportedError for other targets."""
    if config is not None:
        _check_reads_images(config, str(config.where))
        encoder = dummy_vision(VisionConfig.from_hf(config), target.hidden_size, dtype)
        tokens = ImageTokens.from_hf(config, target.vocab_size)
        return ImageSupport(encoder, tokens, has_bidirectional_images(config))
    if name not in DUMMIES:
        names = ", ".join(DUMMIES)
        raise UnsupportedError(
            f"--inputs text,image: no vision tower is known for {name}, but for {names}"
        )
    assert target.hidden_size == GEMMA4_31B.hidden_size
    geometry, tokens = DUMMIES[name]
    encoder = dummy_vision(geometry, target.hidden_size, dtype)
    return ImageSupport(encoder, tokens, bidirectional=True)
