"""Llama decoders."""

from functools import partial

from eagle_aot.targets.llama.config import (
    LLAMA_3_1_8B,
    LLAMA_3_2_1B,
    LLAMA_3_3_70B,
    MODEL_TYPE,
    SMOLLM2_135M,
    read_config,
)
from eagle_aot.targets.pre_norm.model import load_pre_norm

__all__ = [
    "LLAMA_3_1_8B",
    "LLAMA_3_2_1B",
    "LLAMA_3_3_70B",
    "MODEL_TYPE",
    "SMOLLM2_135M",
    "load_llama",
]

load_llama = partial(load_pre_norm, read_config)
