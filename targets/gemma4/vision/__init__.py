"""Gemma 4's image input: the vision tower, and what image rows mean to the text decoder."""

from eagle_aot.targets.gemma4.vision.config import (
    GEMMA4_IMAGE_TOKENS,
    GEMMA4_VISION,
    ImageTokens,
    VisionConfig,
    has_bidirectional_images,
)
from eagle_aot.targets.gemma4.vision.tower import Gemma4Vision, dummy_vision, load_vision

__all__ = [
    "GEMMA4_IMAGE_TOKENS",
    "GEMMA4_VISION",
    "Gemma4Vision",
    "ImageTokens",
    "VisionConfig",
    "dummy_vision",
    "has_bidirectional_images",
    "load_vision",
]
