"""A head's geometry and options: shapes decide, and the config must agree with them."""

from eagle_aot.errors import CheckpointError, PairingError, UnsupportedError
from eagle_aot.export.draft_config import DraftConfig
from eagle_aot.export.draft_head import ACTIVATIONS
from eagle_aot.export.draft_layout import HeadLayout
from eagle_aot.export.tap_layers import default_tap_layers
from eagle_aot.export.verify_window import MAX_CHAIN_LEN
from eagle_aot.targets.decoder.tap_decoder import check_tap_layers

ATTENTION = "layers.0.self_attn"


def read_geometry(head: HeadLayout, num_layers: int | None) -> DraftConfig:
    """The config of a head; `num_layers` is the target's, where it is known.

    Raises CheckpointError for sizes that contradict one another, UnsupportedError for options this
    version does not know, and PairingError for taps that the target does not have.
    """
    hidden, taps_width = head.matrix("fc.weight")
    target_hidden = head.options.count("target_hidden_size", hidden)
    if taps_width % target_hidden:
        raise CheckpointError(
            f"{head.directory}: fc reads {taps_width}, not a multiple of {target_hidden}"
        )
    num_taps = taps_width // target_hidden
    num_heads, num_kv_heads, head_dim = attention_dims(head, hidden)
    vocab_size = head.layer.count("vocab_size")
    reduced = "lm_head.weight" in head.names
    config = DraftConfig(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        num_taps=num_taps,
        vocab_size=vocab_size,
        draft_vocab_size=head.matrix("lm_head.weight")[0] if reduced else vocab_size,
        intermediate_size=head.matrix("layers.0.mlp.gate_proj.weight")[0],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=head.layer.number("rms_norm_eps"),
        rope_theta=rope_theta(head),
        hidden_act=activation(head),
        norm_before_residual=head.options.flag("norm_before_residual"),
        norm_before_fc="input_norm.weight" in head.names,
        fc_norm="fc_norm.0.weight" in head.names,
        norm_output=norm_output(head),
        attention_bias=f"{ATTENTION}.q_proj.bias" in head.names,
        mlp_bias="layers.0.mlp.gate_proj.bias" in head.names,
        fc_bias="fc.bias" in head.names,
        tap_layers=tap_layers(head, num_taps, num_layers),
        default_chain_len=chain_len(head),
    )
    check_agreement(config, head)
    return config


def attention_dims(head: HeadLayout, hidden: int) -> tuple[int, int, int]:
    """(query heads, key/value heads, head dimension); the latter need not be hidden / heads."""
    rows, columns = head.matrix(f"{ATTENTION}.q_proj.weight")
    if columns != 2 * hidden:
        raise UnsupportedError(
            f"{head.directory}: q_proj reads {columns}, EAGLE-3 reads 2 x {hidden}"
        )
    num_heads = head.layer.count("num_attention_heads")
    head_dim, rest = divmod(rows, num_heads)
    if rest:
        raise CheckpointError(f"{head.directory}: q_proj has {rows} rows for {num_heads} heads")
    kv_rows = head.matrix(f"{ATTENTION}.k_proj.weight")[0]
    num_kv_heads, rest = divmod(kv_rows, head_dim)
    if rest or not num_kv_heads:
        raise CheckpointError(
            f"{head.directory}: k_proj has {kv_rows} rows, not a multiple of {head_dim}"
        )
    return num_heads, num_kv_heads, head_dim


def tap_layers(head: HeadLayout, num_taps: int, num_layers: int | None) -> tuple[int, ...]:
    """The boundaries to tap: named by the config, else the defaults of the target's depth."""
    if head.tap_layers and len(head.tap_layers) != num_taps:
        raise CheckpointError(
            f"{head.directory}: {len(head.tap_layers)} tap layers, but fc takes {num_taps} taps"
        )
    if num_layers is None:
        return head.tap_layers
    taps = head.tap_layers or default_tap_layers(num_layers)
    if len(taps) != num_taps:
        raise CheckpointError(f"{head.directory}: fc takes {num_taps} taps, the config names none")
    try:
        check_tap_layers(taps, num_layers)
    except ValueError as error:
        raise PairingError(
            f"{head.directory}: {error}: head and target do not belong together"
        ) from error
    return taps


def rope_theta(head: HeadLayout) -> float:
    """The base of the rotary angles: 10000 where nothing is said, whatever the target uses."""
    key = "rope_parameters" if head.layer.has("rope_parameters") else "rope_scaling"
    parameters = head.layer.section(key)
    if any(isinstance(value, dict) for value in parameters.values.values()):
        raise UnsupportedError(f"{head.directory}: {key} by layer type in a draft head")
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind != "default":
        raise UnsupportedError(f"{head.directory}: rope type {kind!r} in a draft head")
    for section in (parameters, head.layer):
        if section.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedError(f"{head.directory}: partial rotary in a draft head")
    return parameters.number("rope_theta", head.layer.number("rope_theta", 10000.0))


def activation(head: HeadLayout) -> str:
    """The MLP's activation. Raises UnsupportedError for an unknown one."""
    name = head.layer.text("hidden_act", "silu")
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{head.directory}: activation {name!r} in a draft head")
    return name


def norm_output(head: HeadLayout) -> bool:
    """Whether the recurrent feature is post-norm; a flat file's flag of that name is not this one.

    SpecForge writes `norm_output` for the norm before its lm_head and always trains with pre-norm
    feedback; only speculators files mean the feedback.
    """
    return head.options.has("speculators_model_type") and head.options.flag("norm_output")


def chain_len(head: HeadLayout) -> int | None:
    """Drafts per round that a speculators file proposes, where the verify window takes them."""
    methods = head.options.section("speculators_config").values.get("proposal_methods")
    match methods:
        case [{"speculative_tokens": int(count)}, *_] if 1 <= count <= MAX_CHAIN_LEN:
            return count
    return None


def check_agreement(config: DraftConfig, head: HeadLayout) -> None:
    """Raise where config.json states another size than the tensors have, or a sliding layer."""
    stated = {
        "hidden_size": head.layer.values.get("hidden_size"),
        "intermediate_size": head.layer.values.get("intermediate_size"),
        "num_kv_heads": head.layer.values.get("num_key_value_heads"),
        "head_dim": head.layer.values.get("head_dim"),
        "draft_vocab_size": head.options.values.get("draft_vocab_size"),
        "norm_before_fc": head.options.values.get("norm_before_fc"),
        "fc_norm": head.options.values.get("fc_norm"),
    }
    for name, value in stated.items():
        found = getattr(config, name)
        if value is not None and value != found:
            raise CheckpointError(
                f"{head.directory}: config.json says {name} {value}, tensors say {found}"
            )
    if head.layer.has("layer_types") and "sliding_attention" in head.layer.texts("layer_types"):
        raise UnsupportedError(f"{head.directory}: a draft layer with sliding attention")
