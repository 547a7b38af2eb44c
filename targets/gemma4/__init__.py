"""Gemma 4 text decoders, dense and with experts, without per-layer embeddings."""

from eagle_aot.targets.family import Family, Published
from eagle_aot.targets.gemma4.config import (
    GEMMA4_12B,
    GEMMA4_26B_A4B,
    GEMMA4_31B,
    MODEL_TYPES,
    Gemma4Config,
)
from eagle_aot.targets.gemma4.model import Gemma4Target, load_gemma4

__all__ = ["GEMMA4", "Gemma4Config", "Gemma4Target", "load_gemma4"]

GEMMA4 = Family(
    model_types=MODEL_TYPES,
    load=load_gemma4,
    read_config=lambda config, max_seq_len: Gemma4Config.from_hf(config),
    decoder=Gemma4Target,
    published=(
        Published("gemma4-31b", "google/gemma-4-31B-it", GEMMA4_31B),
        Published("gemma4-12b", "google/gemma-4-12B-it", GEMMA4_12B),
        Published("gemma4-26b-a4b", "google/gemma-4-26B-A4B-it", GEMMA4_26B_A4B),
    ),
)
