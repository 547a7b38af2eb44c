"""Geometry of a pre-norm decoder, read from its config.json."""

from dataclasses import dataclass

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.decoder.rope import Rope, read_rope

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreNormConfig:
    """The geometry of a `PreNormDecoder`, in counts of elements.

    With `qk_norm` every query and key head is normalised before it is rotated. `sliding_window` is
    the number of positions that sliding layers see.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    tie_word_embeddings: bool
    qk_norm: bool
    sliding_window: int = 0

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def ring_window(self) -> int:
        """The sliding window; 0 for a model without sliding layers."""
        return self.sliding_window if SLIDING in self.layer_types else 0


def read_pre_norm(
    config: ConfigSection,
    *,
    model_type: str,
    qk_norm: bool,
    head_dim: int | None = None,
    layer_types: tuple[str, ...] = (),
    sliding_window: int = 0,
) -> PreNormConfig:
    """Read the keys that all pre-norm families share; the arguments come from a family's own.

    `head_dim` is the family's default, None for hidden size / heads. Without `layer_types` all
    layers are full. Raises CheckpointError for a missing or odd value and UnsupportedError for
    another family and for math that is not implemented.
    """
    refuse_other_math(config, model_type)
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    kv_heads = config.count("num_key_value_heads", heads)
    head_dim = config.count("head_dim", head_dim or max(hidden // heads, 1))
    if heads % kv_heads or head_dim % 2:
        raise CheckpointError(
            f"{config.where}: {heads} query heads, {kv_heads} key/value heads of {head_dim}"
        )
    return PreNormConfig(
        vocab_size=config.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size"),
        layer_types=layer_types or (FULL,) * config.count("num_hidden_layers", most=MAX_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps"),
        rope=read_rope(config),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        qk_norm=qk_norm,
        sliding_window=sliding_window,
    )


def refuse_other_math(config: ConfigSection, model_type: str) -> None:
    """Raise UnsupportedError for another family, another activation, or biases."""
    name = config.text("model_type", "")
    if name != model_type:
        raise UnsupportedError(
            f"{config.where}: model_type {name!r}, not {model_type!r}: use --target-model auto"
        )
    for key in ("attention_bias", "mlp_bias"):
        if config.flag(key):
            raise UnsupportedError(f"{config.where}: {key} is not supported: linears have no bias")
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedError(f"{config.where}: activation {activation!r} is not supported")
