"""Qwen3 decoders (dense)."""

from functools import partial

from eagle_aot.targets.pre_norm.model import load_pre_norm
from eagle_aot.targets.qwen3.config import (
    MODEL_TYPE,
    QWEN3_0_6B,
    QWEN3_1_7B,
    QWEN3_4B,
    QWEN3_8B,
    QWEN3_14B,
    QWEN3_32B,
    read_config,
)

__all__ = [
    "MODEL_TYPE",
    "QWEN3_0_6B",
    "QWEN3_1_7B",
    "QWEN3_4B",
    "QWEN3_8B",
    "QWEN3_14B",
    "QWEN3_32B",
    "load_qwen3",
]

load_qwen3 = partial(load_pre_norm, read_config)
