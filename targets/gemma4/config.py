"""Geometry of a Gemma 4 text decoder, read from either spelling of its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle_aot.errors import CheckpointError, UnsupportedError

MODEL_TYPES = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemma4Config:
    """What the decoder's math depends on. Sizes are counts of elements.

    Sliding layers use `head_dim` and `num_key_value_heads`, full layers the `global_` pair.
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
    sliding_rope_theta: float
    full_rope_theta: float
    full_rotary_fraction: float
    full_rope_factor: float
    final_logit_softcapping: float | None
    tie_word_embeddings: bool

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    def dims(self, layer: int) -> tuple[int, int]:
        """(head_dim, key/value heads) of one layer."""
        if self.layer_types[layer] == SLIDING:
            return self.head_dim, self.num_key_value_heads
        return self.global_head_dim, self.num_global_key_value_heads

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "Gemma4Config":
        """Read a config.json object, nested (`text_config`) or flat.

        Raises CheckpointError for a missing key and UnsupportedError for Gemma 4 variants whose
        math is not implemented (per-layer embeddings, shared KV layers, experts).
        """
        text = config.get("text_config", config)
        refuse_other_variants(text)
        layer_types = tuple(_need(text, "layer_types"))
        if len(layer_types) != _need(text, "num_hidden_layers"):
            raise CheckpointError("config.json: layer_types and num_hidden_layers disagree")
        global_head_dim, global_kv_heads = _global_dims(text, layer_types)
        rope = _need(text, "rope_parameters")
        full_rope = _rope(rope, FULL, "proportional")
        return cls(
            vocab_size=_need(text, "vocab_size"),
            hidden_size=_need(text, "hidden_size"),
            intermediate_size=_need(text, "intermediate_size"),
            layer_types=layer_types,
            num_attention_heads=_need(text, "num_attention_heads"),
            num_key_value_heads=_need(text, "num_key_value_heads"),
            head_dim=_need(text, "head_dim"),
            global_head_dim=global_head_dim,
            num_global_key_value_heads=global_kv_heads,
            sliding_window=_need(text, "sliding_window"),
            attention_k_eq_v=bool(text.get("attention_k_eq_v", False)),
            rms_norm_eps=_need(text, "rms_norm_eps"),
            sliding_rope_theta=_rope(rope, SLIDING, "default")["rope_theta"],
            full_rope_theta=full_rope["rope_theta"],
            full_rotary_fraction=full_rope.get("partial_rotary_factor", 1.0),
            full_rope_factor=full_rope.get("factor", 1.0),
            final_logit_softcapping=text.get("final_logit_softcapping"),
            tie_word_embeddings=bool(text.get("tie_word_embeddings", True)),
        )


def refuse_other_variants(text: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a member of the family that needs other math."""
    if text.get("model_type") not in MODEL_TYPES:
        raise UnsupportedError(f"model_type {text.get('model_type')!r} is not a Gemma 4 decoder")
    # transformers' default for an absent key is 256, so absent means "has them".
    if text.get("hidden_size_per_layer_input", 256):
        raise UnsupportedError("Gemma 4 with per-layer embeddings (E2B, E4B) is not supported")
    if text.get("num_kv_shared_layers", 0):
        raise UnsupportedError("Gemma 4 with shared KV layers (E2B, E4B) is not supported")
    if text.get("enable_moe_block", False):
        raise UnsupportedError("Gemma 4 with experts (26B-A4B) is not supported")
    if text.get("attention_bias", False):
        raise UnsupportedError("Gemma 4 with attention biases is not supported")
    if text.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise UnsupportedError(f"Gemma 4 with activation {text['hidden_activation']!r}")


def _global_dims(text: Mapping[str, Any], layer_types: tuple[str, ...]) -> tuple[int, int]:
    """Full layers' dims: two keys as published, or a table per layer as transformers re-saves."""
    head_dim, kv_heads = _need(text, "head_dim"), _need(text, "num_key_value_heads")
    if "per_layer_config" not in text:
        # As in transformers: full layers have their own kv heads only where keys are the values.
        shared = text.get("attention_k_eq_v") and text.get("num_global_key_value_heads")
        return text.get("global_head_dim") or head_dim, shared or kv_heads
    table = {int(layer): dims for layer, dims in text["per_layer_config"].items()}
    found = {
        (
            table.get(i, {}).get("head_dim", head_dim),
            table.get(i, {}).get("num_key_value_heads", kv_heads),
        )
        for i, kind in enumerate(layer_types)
        if kind == FULL
    }
    if len(found) > 1 or any(layer_types[i] != FULL for i in table):
        raise UnsupportedError("config.json: per_layer_config beyond one shape of full layers")
    return found.pop() if found else (head_dim, kv_heads)


def _rope(parameters: Mapping[str, Any], kind: str, expected: str) -> Mapping[str, Any]:
    section: Mapping[str, Any] = _need(parameters, kind)
    if section.get("rope_type", "default") != expected:
        raise UnsupportedError(f"rope_type {section.get('rope_type')!r} on {kind} layers")
    return section


def _need(section: Mapping[str, Any], key: str) -> Any:
    if section.get(key) is None:
        raise CheckpointError(f"config.json: key {key!r} is missing")
    return section[key]


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
    sliding_rope_theta=1e4,
    full_rope_theta=1e6,
    full_rotary_fraction=0.25,
    full_rope_factor=1.0,
    final_logit_softcapping=30.0,
    tie_word_embeddings=True,
)
"""google/gemma-4-31B-it, for dummy weights; a real export reads the checkpoint's own config."""
