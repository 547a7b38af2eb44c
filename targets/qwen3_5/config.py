"""Geometry of a Qwen3.5 text decoder, read from its config.json."""

from dataclasses import dataclass

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.decoder.recurrent_cache import StateSizes
from eagle_aot.targets.decoder.rope import Rope, RotaryEmbedding, read_rope
from eagle_aot.targets.pre_norm.config import FULL, PreNormConfig, read_pre_norm
from eagle_aot.targets.step import TAIL

TEXT, WHOLE = "qwen3_5_text", "qwen3_5"
MODEL_TYPES = TEXT, WHOLE
"""A text decoder, and one in a model that also reads images, whose encoder is not loaded."""
LINEAR = "linear_attention"
INTERVAL = 4
"""Every so many layers attend, if config.json does not list them."""
SHARE = "partial_rotary_factor"
DEFAULT_SHARE, DEFAULT_THETA = 0.25, 1e7
MROPE = "mrope_section", "mrope_interleaved", "type"
"""Which pairs of a head turn with an image's rows and columns; a text's positions are all alike."""
HEAD_DIM = 256
TAPS, KEY_HEADS, STATES, STATE_DIM = 4, 16, 32, 128
"""Sizes of the delta nets, if config.json has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeadingRope(Rope):
    """Rotates the first `rotated` elements of a head as `leading` rotates a head of that many."""

    rotated: int
    leading: Rope

    @property
    def decision(self) -> dict[str, str]:
        return self.leading.decision

    def embedding(self, head_dim: int) -> RotaryEmbedding:
        """Make the module whose tables have `rotated` elements."""
        return self.leading.embedding(self.rotated)


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridConfig(PreNormConfig):
    """The geometry of a `HybridDecoder`; `states` are the sizes of its gated delta nets."""

    states: StateSizes


def read_qwen3_5(config: ConfigSection, max_seq_len: int) -> HybridConfig:
    """Read a config.json, nested (`text_config`) or flat.

    Raises CheckpointError for a missing or odd value and UnsupportedError for math that is not
    implemented.
    """
    text = config.section("text_config") if config.has("text_config") else config
    if not text.flag("attn_output_gate", True):
        raise UnsupportedError(f"{text.where}: attention without an output gate is not supported")
    if text.flag("attention_bias"):
        raise UnsupportedError(f"{text.where}: attention biases are not supported")
    shared = read_pre_norm(
        text,
        max_seq_len,
        model_type=TEXT,
        qk_norm=True,
        head_dim=HEAD_DIM,
        layer_types=_layer_types(text),
        rope=_read_rope(text, max_seq_len),
    )
    fields = {name: getattr(shared, name) for name in PreNormConfig.__dataclass_fields__}
    owner = config if config.has("tie_word_embeddings") else text
    fields["tie_word_embeddings"] = owner.flag("tie_word_embeddings")
    return HybridConfig(**fields, states=_read_states(text))


def _layer_types(text: ConfigSection) -> tuple[str, ...]:
    """Return each layer's type: listed, or every so many layers full."""
    layers = text.count("num_hidden_layers", most=MAX_LAYERS)
    if not text.has("layer_types"):
        return layer_pattern(layers, text.count("full_attention_interval", INTERVAL))
    kinds = text.texts("layer_types")
    if len(kinds) != layers:
        raise CheckpointError(f"{text.where}: layer_types lists {len(kinds)} of {layers} layers")
    if unknown := set(kinds) - {FULL, LINEAR}:
        raise UnsupportedError(f"{text.where}: layer type {unknown.pop()!r}")
    return kinds


def layer_pattern(layers: int, interval: int = INTERVAL) -> tuple[str, ...]:
    """Return the types of so many layers; every `interval` one attends."""
    return tuple(LINEAR if number % interval else FULL for number in range(1, layers + 1))


def _read_states(text: ConfigSection) -> StateSizes:
    sizes = StateSizes(
        key_heads=text.count("linear_num_key_heads", KEY_HEADS),
        heads=text.count("linear_num_value_heads", STATES),
        key_dim=text.count("linear_key_head_dim", STATE_DIM),
        value_dim=text.count("linear_value_head_dim", STATE_DIM),
        taps=text.count("linear_conv_kernel_dim", TAPS),
    )
    if sizes.heads % sizes.key_heads:
        raise CheckpointError(
            f"{text.where}: {sizes.heads} value heads, {sizes.key_heads} key heads of delta nets"
        )
    if not 1 < sizes.taps <= TAIL:
        raise UnsupportedError(f"{text.where}: a convolution of {sizes.taps} tokens")
    return sizes


def _read_rope(text: ConfigSection, max_seq_len: int) -> Rope:
    """Read the rotary embedding of the first part of each head, at positions of text."""
    key = "rope_scaling" if text.section("rope_scaling").values else "rope_parameters"
    section = text.section(key)
    share = section.number(SHARE, text.number(SHARE, DEFAULT_SHARE))
    head_dim = text.count("head_dim", HEAD_DIM)
    rotated = int(head_dim * share)
    if not 0 < rotated <= head_dim or rotated % 2:
        raise CheckpointError(f"{text.where}: {SHARE} {share} rotates {rotated} of {head_dim}")
    used = {name: v for name, v in section.values.items() if name not in (SHARE, *MROPE)}
    theta = section.number("rope_theta", text.number("rope_theta", DEFAULT_THETA))
    values = {**text.values, SHARE: None, key: used | {"rope_theta": theta}}
    leading = read_rope(ConfigSection(values, text.where), rotated, max_seq_len)
    return LeadingRope(theta=leading.theta, rotated=rotated, leading=leading)


def published_config(
    *, hidden: int, inner: int, layers: int, heads: int, states: int, tied: bool = False
) -> HybridConfig:
    """Return the geometry of a published size; those that all sizes share are of their configs."""
    return HybridConfig(
        vocab_size=248320,
        hidden_size=hidden,
        intermediate_size=inner,
        layer_types=layer_pattern(layers),
        num_attention_heads=heads,
        num_key_value_heads=4,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        rope=LeadingRope(theta=DEFAULT_THETA, rotated=64, leading=Rope(theta=DEFAULT_THETA)),
        tie_word_embeddings=tied,
        qk_norm=True,
        states=StateSizes(
            key_heads=KEY_HEADS, heads=states, key_dim=STATE_DIM, value_dim=STATE_DIM, taps=TAPS
        ),
    )
