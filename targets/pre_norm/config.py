"""Geometry of a pre-norm decoder, read from its config.json."""

from dataclasses import dataclass

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.decoder.rope import Rope, read_rope

FULL, SLIDING = "full_attention", "sliding_attention"
QKV = ("q_proj", "k_proj", "v_proj")
ATTENTION = (*QKV, "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
SILU = ("silu", "swish")
"""The names of the one activation that is computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreNormConfig:
    """The geometry of a `PreNormDecoder`, in counts of elements.

    With `qk_norm` every query and key head is normalised before it is rotated. `biased` names the
    linears of a layer that have a bias. `sliding_window` is the number of positions that sliding
    layers see.
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
    biased: tuple[str, ...] = ()
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
    max_seq_len: int,
    *,
    model_type: str,
    qk_norm: bool,
    biased: tuple[str, ...] = (),
    head_dim: int | None = None,
    layer_types: tuple[str, ...] = (),
    sliding_window: int = 0,
    rope: Rope | None = None,
) -> PreNormConfig:
    """Read the keys that all pre-norm families share; the arguments come from a family's own.

    `max_seq_len` is the number of positions that will be used, on which some rotary embeddings
    depend; without `rope` the embedding is read here.
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
        rope=rope or read_rope(config, head_dim, max_seq_len),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        qk_norm=qk_norm,
        biased=biased,
        sliding_window=sliding_window,
    )


def refuse_other_math(config: ConfigSection, model_type: str) -> None:
    """Raise UnsupportedError for another family or another activation."""
    name = config.text("model_type", "")
    if name != model_type:
        raise UnsupportedError(
            f"{config.where}: model_type {name!r}, not {model_type!r}: use --target-model auto"
        )
    activation = config.text("hidden_act", "silu")
    if activation not in SILU:
        raise UnsupportedError(f"{config.where}: activation {activation!r} is not supported")


def same_window_types(config: ConfigSection, window: int, max_seq_len: int) -> tuple[str, ...]:
    """Return the types of layers that all have one `window`, 0 for none; a window that holds all of
    `max_seq_len` positions hides nothing."""
    kind = SLIDING if 0 < window < max_seq_len else FULL
    return (kind,) * config.count("num_hidden_layers", most=MAX_LAYERS)
