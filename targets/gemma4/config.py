"""Geometry of a Gemma 4 text decoder, read from either spelling of its config.json."""

from dataclasses import dataclass, replace

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.decoder.experts import ExpertsConfig, read_experts
from eagle_aot.targets.decoder.rope import DEFAULT, PROPORTIONAL, ProportionalRope, Rope

MODEL_TYPES = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
FULL, SLIDING = "full_attention", "sliding_attention"
# What transformers assumes if config.json has no rope_parameters.
SLIDING_ROPE = Rope(theta=1e4)
FULL_ROPE = ProportionalRope(theta=1e6, partial_rotary_factor=0.25)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemma4Config:
    """The geometry of the decoder, in counts of elements.

    Sliding layers use `head_dim` and `num_key_value_heads`, full layers the `global_` pair. With
    `experts` every layer has them in addition to its MLP.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    global_head_dim: int
    num_global_key_value_heads: int
    sliding_window: int
    attention_k_eq_v: bool
    rms_norm_eps: float
    sliding_rope: Rope
    full_rope: Rope
    final_logit_softcapping: float | None
    tie_word_embeddings: bool
    experts: ExpertsConfig | None = None

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def ring_window(self) -> int:
        """The sliding window; 0 for a model without sliding layers."""
        return self.sliding_window if SLIDING in self.layer_types else 0

    def dims(self, layer: int) -> tuple[int, int]:
        """Return head_dim and the number of key/value heads of one layer."""
        if self.layer_types[layer] == SLIDING:
            return self.head_dim, self.num_key_value_heads
        return self.global_head_dim, self.num_global_key_value_heads

    @classmethod
    def from_hf(cls, config: ConfigSection) -> "Gemma4Config":
        """Read a config.json, nested (`text_config`) or flat.

        Raises CheckpointError for a missing or odd value and UnsupportedError for Gemma 4 variants
        whose math is not implemented (per-layer embeddings, shared KV layers).
        """
        text = config.section("text_config") if config.has("text_config") else config
        refuse_other_variants(text)
        layer_types = _layer_types(text)
        global_head_dim, global_kv_heads = _global_dims(text, layer_types)
        _check_heads(text, global_head_dim, global_kv_heads)
        has_cap = text.has("final_logit_softcapping")
        return cls(
            vocab_size=text.count("vocab_size"),
            hidden_size=text.count("hidden_size"),
            intermediate_size=text.count("intermediate_size"),
            layer_types=layer_types,
            num_attention_heads=text.count("num_attention_heads"),
            num_key_value_heads=text.count("num_key_value_heads"),
            head_dim=text.count("head_dim"),
            global_head_dim=global_head_dim,
            num_global_key_value_heads=global_kv_heads,
            sliding_window=text.count("sliding_window"),
            attention_k_eq_v=text.flag("attention_k_eq_v"),
            rms_norm_eps=text.number("rms_norm_eps"),
            sliding_rope=_sliding_rope(text),
            full_rope=_full_rope(text),
            final_logit_softcapping=text.number("final_logit_softcapping") if has_cap else None,
            tie_word_embeddings=text.flag("tie_word_embeddings", True),
            experts=_experts(text) if text.flag("enable_moe_block") else None,
        )


def refuse_other_variants(text: ConfigSection) -> None:
    """Raise UnsupportedError for a Gemma 4 variant that needs other math."""
    model_type = text.text("model_type", "")
    if model_type not in MODEL_TYPES:
        raise UnsupportedError(f"{text.where}: model_type {model_type!r} is not a Gemma 4 decoder")
    # transformers' default for an absent key is 256, so absent means "has them".
    if text.values.get("hidden_size_per_layer_input", 256):
        raise UnsupportedError("Gemma 4 with per-layer embeddings (E2B, E4B) is not supported")
    if text.values.get("num_kv_shared_layers"):
        raise UnsupportedError("Gemma 4 with shared KV layers (E2B, E4B) is not supported")
    if text.flag("attention_bias"):
        raise UnsupportedError("Gemma 4 with attention biases is not supported")
    if text.values.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise UnsupportedError("Gemma 4 with bidirectional text attention is not supported")
    activation = text.text("hidden_activation", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnsupportedError(f"Gemma 4 with activation {activation!r} is not supported")


def _experts(text: ConfigSection) -> ExpertsConfig:
    return read_experts(
        text,
        count=text.count("num_experts"),
        top_k=text.count("top_k_experts"),
        intermediate_size=text.count("moe_intermediate_size"),
    )


def _layer_types(text: ConfigSection) -> tuple[str, ...]:
    kinds = text.texts("layer_types")
    if len(kinds) != text.count("num_hidden_layers", most=MAX_LAYERS):
        raise CheckpointError(f"{text.where}: layer_types and num_hidden_layers disagree")
    unknown = set(kinds) - {FULL, SLIDING}
    if unknown:
        raise UnsupportedError(f"{text.where}: layer type {unknown.pop()!r}")
    return kinds


def _global_dims(text: ConfigSection, layer_types: tuple[str, ...]) -> tuple[int, int]:
    """Return head_dim and key/value heads of full layers.

    Published configs have two keys for them; transformers re-saves them as a table per layer.
    """
    head_dim, kv_heads = text.count("head_dim"), text.count("num_key_value_heads")
    if not text.has("per_layer_config"):
        # As in transformers: full layers have their own kv heads only where keys are the values.
        has_global_kv_heads = text.flag("attention_k_eq_v")
        return (
            text.count("global_head_dim", head_dim),
            text.count("num_global_key_value_heads", kv_heads) if has_global_kv_heads else kv_heads,
        )
    table = text.section("per_layer_config")
    layers = {int(key): table.section(key) for key in table.values if key.isdecimal()}
    full = [i for i, kind in enumerate(layer_types) if kind == FULL]
    empty = ConfigSection({}, text.where)
    dims = {
        (layer.count("head_dim", head_dim), layer.count("num_key_value_heads", kv_heads))
        for layer in (layers.get(i, empty) for i in full)
    }
    if len(dims) > 1 or not set(layers) <= set(full) or len(layers) != len(table.values):
        raise UnsupportedError(
            f"{text.where}: per_layer_config is not one shape for all full layers"
        )
    return dims.pop() if dims else (head_dim, kv_heads)


def _check_heads(text: ConfigSection, global_head_dim: int, global_kv_heads: int) -> None:
    """Raise CheckpointError for heads that cannot be grouped or rotated."""
    heads = text.count("num_attention_heads")
    sliding = text.count("head_dim"), text.count("num_key_value_heads")
    for head_dim, kv_heads in (sliding, (global_head_dim, global_kv_heads)):
        if heads % kv_heads or head_dim % 2:
            raise CheckpointError(
                f"{text.where}: {heads} query heads, {kv_heads} key/value heads of {head_dim}"
            )


def _sliding_rope(text: ConfigSection) -> Rope:
    if not text.has("rope_parameters"):
        return SLIDING_ROPE
    return Rope(theta=_rope_section(text, SLIDING, DEFAULT).number("rope_theta"))


def _full_rope(text: ConfigSection) -> Rope:
    if not text.has("rope_parameters"):
        return FULL_ROPE
    section = _rope_section(text, FULL, PROPORTIONAL)
    rotated = section.number("partial_rotary_factor", 1.0)
    if rotated > 1.0:
        raise CheckpointError(f"{text.where}: partial_rotary_factor is more than 1")
    return ProportionalRope(
        theta=section.number("rope_theta"),
        factor=section.number("factor", 1.0),
        partial_rotary_factor=rotated,
    )


def _rope_section(text: ConfigSection, kind: str, expected: str) -> ConfigSection:
    """Return the rope parameters of one kind of layer, whose type must be `expected`."""
    section = text.section("rope_parameters").section(kind)
    if (name := section.text("rope_type", DEFAULT)) != expected:
        raise UnsupportedError(f"{text.where}: rope_type {name!r} on {kind} layers")
    return section


GEMMA4_31B = Gemma4Config(
    vocab_size=262144,
    hidden_size=5376,
    intermediate_size=21504,
    layer_types=((SLIDING,) * 5 + (FULL,)) * 10,
    num_attention_heads=32,
    num_key_value_heads=16,
    head_dim=256,
    global_head_dim=512,
    num_global_key_value_heads=4,
    sliding_window=1024,
    attention_k_eq_v=True,
    rms_norm_eps=1e-6,
    sliding_rope=SLIDING_ROPE,
    full_rope=FULL_ROPE,
    final_logit_softcapping=30.0,
    tie_word_embeddings=True,
)
"""google/gemma-4-31B-it, for dummy weights; other exports read the checkpoint's config."""

GEMMA4_12B = replace(
    GEMMA4_31B,
    hidden_size=3840,
    intermediate_size=15360,
    layer_types=((SLIDING,) * 5 + (FULL,)) * 8,
    num_attention_heads=16,
    num_key_value_heads=8,
    num_global_key_value_heads=1,
)
"""The text decoder of google/gemma-4-12B-it, for dummy weights."""

GEMMA4_26B_A4B = replace(
    GEMMA4_12B,
    hidden_size=2816,
    intermediate_size=2112,
    layer_types=((SLIDING,) * 5 + (FULL,)) * 5,
    num_global_key_value_heads=2,
    experts=ExpertsConfig(num_experts=128, top_k=8, intermediate_size=704),
)
"""The text decoder of google/gemma-4-26B-A4B-it, for dummy weights."""
