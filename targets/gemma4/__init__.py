"""Gemma 4 text decoders (dense, without per-layer embeddings)."""

from eagle_aot.targets.gemma4.config import GEMMA4_12B, GEMMA4_31B, Gemma4Config
from eagle_aot.targets.gemma4.model import Gemma4Target, load_gemma4

__all__ = ["GEMMA4_12B", "GEMMA4_31B", "Gemma4Config", "Gemma4Target", "load_gemma4"]
