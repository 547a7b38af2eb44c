"""Gemma 4's pictures: the tower that reads them, and what their rows mean to the text decoder."""

from eagle_aot.targets.gemma4.vision.config import (
    GEMMA4_PICTURES,
    GEMMA4_VISION,
    PictureTokens,
    VisionConfig,
    sees_pictures_whole,
)
from eagle_aot.targets.gemma4.vision.tower import Gemma4Vision
from eagle_aot.targets.gemma4.vision.weights import dummy_vision, load_vision

__all__ = [
    "GEMMA4_PICTURES",
    "GEMMA4_VISION",
    "Gemma4Vision",
    "PictureTokens",
    "VisionConfig",
    "dummy_vision",
    "load_vision",
    "sees_pictures_whole",
]
