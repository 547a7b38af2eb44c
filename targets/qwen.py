"""Dense Qwen2.5 and Qwen3 decoders: their config.json, and the geometry of published models."""

from dataclasses import replace
from functools import partial

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.decoder.rope import Rope
from eagle_aot.targets.family import Family, Published
from eagle_aot.targets.pre_norm.config import (
    ATTENTION,
    FULL,
    QKV,
    SLIDING,
    PreNormConfig,
    read_pre_norm,
)
from eagle_aot.targets.pre_norm.model import PreNormDecoder, load_pre_norm

HEAD_DIM = 128  # of Qwen3, if config.json has none; it need not be hidden size / heads
MAX_WINDOW_LAYERS = 28  # if config.json has none


def read_qwen3(config: ConfigSection, max_seq_len: int, model_type: str = "qwen3") -> PreNormConfig:
    """Read a config.json. Raises CheckpointError and UnsupportedError."""
    kinds = layer_types(config)
    return read_pre_norm(
        config,
        max_seq_len,
        model_type=model_type,
        qk_norm=True,
        biased=ATTENTION if config.flag("attention_bias") else (),
        head_dim=HEAD_DIM,
        layer_types=kinds,
        sliding_window=config.count("sliding_window") if SLIDING in kinds else 0,
    )


def read_qwen2(config: ConfigSection, max_seq_len: int) -> PreNormConfig:
    """Read a config.json, which does not mention the biases of q, k and v. Raises CheckpointError
    and UnsupportedError."""
    kinds = layer_types(config)
    return read_pre_norm(
        config,
        max_seq_len,
        model_type="qwen2",
        qk_norm=False,
        biased=QKV,
        layer_types=kinds,
        sliding_window=config.count("sliding_window") if SLIDING in kinds else 0,
    )


def layer_types(config: ConfigSection) -> tuple[str, ...]:
    """Return each layer's type: listed, or sliding from layer `max_window_layers` on.

    Layers slide only if the config has `use_sliding_window`, or lists them and does not deny it.
    """
    layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    slides = config.flag("use_sliding_window")
    if not config.has("layer_types"):
        full = config.count("max_window_layers", MAX_WINDOW_LAYERS) if slides else layers
        return (FULL,) * min(full, layers) + (SLIDING,) * (layers - full)
    kinds = config.texts("layer_types")
    denied = config.has("use_sliding_window") and not slides
    if len(kinds) != layers or (SLIDING in kinds and denied):
        raise CheckpointError(
            f"{config.where}: layer_types disagrees with num_hidden_layers or use_sliding_window"
        )
    if unknown := set(kinds) - {FULL, SLIDING}:
        raise UnsupportedError(f"{config.where}: layer type {unknown.pop()!r}")
    return kinds


def published(
    size: str, *, hidden: int, layers: int, heads: int, inner: int, tied: bool = False
) -> Published:
    """Make the entry of a published size.

    0.6B, 4B and 8B are from copies of the published configs, the others from general knowledge.
    """
    config = PreNormConfig(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=inner,
        layer_types=(FULL,) * layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        rope=Rope(theta=1e6),
        tie_word_embeddings=tied,
        qk_norm=True,
    )
    return Published(f"qwen3-{size.lower()}", f"Qwen/Qwen3-{size}", config)


QWEN2_5_7B = PreNormConfig(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    layer_types=(FULL,) * 28,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope=Rope(theta=1e6),
    tie_word_embeddings=False,
    qk_norm=False,
    biased=QKV,
)
"""Qwen/Qwen2.5-7B-Instruct; sizes from general knowledge."""

QWEN2_5_HALF_B = replace(
    QWEN2_5_7B,
    vocab_size=151936,
    hidden_size=896,
    intermediate_size=4864,
    layer_types=(FULL,) * 24,
    num_attention_heads=14,
    num_key_value_heads=2,
    head_dim=64,
    tie_word_embeddings=True,
)
"""Qwen/Qwen2.5-0.5B-Instruct; sizes from general knowledge."""

QWEN3 = Family(
    model_types=("qwen3",),
    load=partial(load_pre_norm, read_qwen3, PreNormDecoder),
    read_config=read_qwen3,
    decoder=PreNormDecoder,
    published=(
        published("0.6B", hidden=1024, layers=28, heads=16, inner=3072, tied=True),
        published("1.7B", hidden=2048, layers=28, heads=16, inner=6144, tied=True),
        published("4B", hidden=2560, layers=36, heads=32, inner=9728, tied=True),
        published("8B", hidden=4096, layers=36, heads=32, inner=12288),
        published("14B", hidden=5120, layers=40, heads=40, inner=17408),
        published("32B", hidden=5120, layers=64, heads=64, inner=25600),
    ),
)

QWEN2 = Family(
    model_types=("qwen2",),
    load=partial(load_pre_norm, read_qwen2, PreNormDecoder),
    read_config=read_qwen2,
    decoder=PreNormDecoder,
    published=(
        Published("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", QWEN2_5_HALF_B),
        Published("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", QWEN2_5_7B),
    ),
)
