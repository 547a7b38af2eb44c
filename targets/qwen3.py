"""Dense Qwen3 decoders: their config.json, and the geometry of published models."""

from functools import partial

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.decoder.rope import Rope
from eagle_aot.targets.family import Family, Published
from eagle_aot.targets.pre_norm.config import FULL, SLIDING, PreNormConfig, read_pre_norm
from eagle_aot.targets.pre_norm.model import PreNormDecoder, load_pre_norm

MODEL_TYPE = "qwen3"
HEAD_DIM = 128  # if config.json has none; it need not be hidden size / heads
MAX_WINDOW_LAYERS = 28  # if config.json has none


def read_config(config: ConfigSection) -> PreNormConfig:
    """Read a config.json. Raises CheckpointError and UnsupportedError."""
    kinds = layer_types(config)
    return read_pre_norm(
        config,
        model_type=MODEL_TYPE,
        qk_norm=True,
        head_dim=HEAD_DIM,
        layer_types=kinds,
        sliding_window=config.count("sliding_window") if SLIDING in kinds else 0,
    )


def layer_types(config: ConfigSection) -> tuple[str, ...]:
    """Return each layer's type: listed, or sliding from layer `max_window_layers` on.

    Layers slide only if the config has `use_sliding_window`.
    """
    layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    slides = config.flag("use_sliding_window")
    if not config.has("layer_types"):
        full = config.count("max_window_layers", MAX_WINDOW_LAYERS) if slides else layers
        return (FULL,) * min(full, layers) + (SLIDING,) * (layers - full)
    kinds = config.texts("layer_types")
    if len(kinds) != layers or (SLIDING in kinds and not slides):
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


QWEN3 = Family(
    model_types=(MODEL_TYPE,),
    load=partial(load_pre_norm, read_config),
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
