"""A head's geometry and options. Shapes decide, and the config must agree with them."""

from eagle_aot.common.errors import CheckpointError, PairingError, UnsupportedError
from eagle_aot.export.drafters.eagle3.config import DraftConfig
from eagle_aot.export.drafters.eagle3.layer import ACTIVATIONS
from eagle_aot.export.drafters.eagle3.reading.flags import SPECULATORS
from eagle_aot.export.drafters.eagle3.reading.layout import HeadLayout
from eagle_aot.export.drafters.eagle3.reading.names import OWN_IDS
from eagle_aot.export.drafters.eagle3.reading.taps import WAY_OUT, TapChoice, default_tap_layers
from eagle_aot.export.drafters.head_rope import read_head_rope
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.tap_decoder import check_tap_layers
from eagle_aot.targets.step import MAX_CHAIN_LEN

ATTENTION = "layers.0.self_attn"


def read_geometry(head: HeadLayout, num_layers: int | None) -> DraftConfig:
    """Return the config of a head; `num_layers` is the target's, None if unknown.

    Raises CheckpointError for sizes that contradict each other, UnsupportedError for unknown
    options, and PairingError for taps that the target does not have.
    """
    hidden, _ = head.matrix("fc.weight")
    target_hidden, num_taps = tap_sizes(head)
    num_heads, num_kv_heads, head_dim = attention_dims(head, hidden)
    vocab_size = head.layer.count("vocab_size")
    has_output = "lm_head.weight" in head.names
    flags = {name: flag.value for name, flag in head.flags.items()}
    config = DraftConfig(
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        num_taps=num_taps,
        vocab_size=vocab_size,
        draft_vocab_size=head.matrix("lm_head.weight")[0] if has_output else vocab_size,
        intermediate_size=head.matrix("layers.0.mlp.gate_proj.weight")[0],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_layers=head.num_layers,
        rms_norm_eps=head.layer.number("rms_norm_eps"),
        rope=read_head_rope(head.layer),
        hidden_act=head.layer.text("hidden_act", "silu"),
        tap_layers=resolve_tap_layers(head, num_taps, num_layers).boundaries,
        default_chain_len=chain_len(head),
        mask_token_id=read_mask_token(head.options, vocab_size) if head.parallel else None,
        **flags,
    )
    check_agreement(config, head)
    return config


def tap_sizes(head: HeadLayout) -> tuple[int, int]:
    """Return the target's hidden size and the number of taps; `fc` reads their product."""
    _, columns = head.matrix("fc.weight")
    stated = head.options.count("num_aux_hidden_states", len(head.taps.boundaries) or 3)
    width = head.options.count("target_hidden_size", _unnamed_width(head, stated))
    if columns % width:
        raise CheckpointError(f"{head.directory}: fc reads {columns}, not a multiple of {width}")
    if head.options.has("num_aux_hidden_states") and columns // width != stated:
        raise CheckpointError(
            f"{head.directory}: num_aux_hidden_states is {stated}, fc takes {columns // width} taps"
        )
    return width, columns // width


def _unnamed_width(head: HeadLayout, num_taps: int) -> int:
    """Return the head's hidden size for speculators, as null means there; otherwise the share of a
    tap in the columns of `fc`."""
    hidden, columns = head.matrix("fc.weight")
    rest = columns % num_taps
    return hidden if head.trainer == SPECULATORS or rest else columns // num_taps


def attention_dims(head: HeadLayout, hidden: int) -> tuple[int, int, int]:
    """Return query heads, key/value heads and head dimension, which need not be hidden / heads."""
    rows, columns = head.matrix(f"{ATTENTION}.q_proj.weight")
    if columns != 2 * hidden:
        raise UnsupportedError(
            f"{head.directory}: q_proj reads {columns}, EAGLE-3 reads 2 x {hidden}"
        )
    num_heads = head.layer.count("num_attention_heads")
    head_dim, rest = divmod(rows, num_heads)
    if rest or not head_dim:
        raise CheckpointError(f"{head.directory}: q_proj has {rows} rows for {num_heads} heads")
    kv_rows = head.matrix(f"{ATTENTION}.k_proj.weight")[0]
    num_kv_heads, rest = divmod(kv_rows, head_dim)
    if rest or not num_kv_heads:
        raise CheckpointError(
            f"{head.directory}: k_proj has {kv_rows} rows, not a multiple of {head_dim}"
        )
    return num_heads, num_kv_heads, head_dim


def resolve_tap_layers(head: HeadLayout, num_taps: int, num_layers: int | None) -> TapChoice:
    """Return the named boundaries, otherwise the defaults for the target's number of layers."""
    if head.taps.boundaries and len(head.taps.boundaries) != num_taps:
        raise CheckpointError(
            f"{head.directory}: {len(head.taps.boundaries)} tap layers, but fc takes "
            f"{num_taps} taps: {WAY_OUT}"
        )
    if num_layers is None:
        return head.taps
    taps = head.taps if head.taps.boundaries else default_tap_layers(num_layers)
    if len(taps.boundaries) != num_taps:
        raise CheckpointError(
            f"{head.directory}: fc takes {num_taps} taps, the config names none: {WAY_OUT}"
        )
    try:
        check_tap_layers(taps.boundaries, num_layers)
    except ValueError as error:
        raise PairingError(
            f"{head.directory}: {error}: head and target do not belong together"
        ) from error
    return taps


def chain_len(head: HeadLayout) -> int | None:
    """Return the drafts per round that a speculators file proposes; None if there are too many."""
    methods = head.options.section("speculators_config").values.get("proposal_methods")
    match methods:
        case [{"speculative_tokens": int(count)}, *_] if 1 <= count <= MAX_CHAIN_LEN:
            return count
    return None


def check_agreement(config: DraftConfig, head: HeadLayout) -> None:
    """Raise CheckpointError if config.json states another size than the tensors have,
    UnsupportedError for a sliding layer or an unknown activation."""
    if config.hidden_act not in ACTIVATIONS:
        raise UnsupportedError(
            f"{head.directory}: activation {config.hidden_act!r} in a draft head"
        )
    stated = {
        "hidden_size": head.layer.values.get("hidden_size"),
        "intermediate_size": head.layer.values.get("intermediate_size"),
        "num_kv_heads": head.layer.values.get("num_key_value_heads"),
        "head_dim": head.layer.values.get("head_dim"),
        "draft_vocab_size": head.options.values.get("draft_vocab_size"),
    }
    for name, value in stated.items():
        actual = getattr(config, name)
        if value is not None and value != actual:
            raise CheckpointError(
                f"{head.directory}: config.json says {name} {value}, tensors say {actual}"
            )
    if head.layer.has("layer_types"):
        kinds = head.layer.texts("layer_types")[: config.num_layers]
        if "sliding_attention" in kinds:
            raise UnsupportedError(f"{head.directory}: a draft layer with sliding attention")


def read_mask_token(config: ConfigSection, vocab_size: int) -> int:
    """Return the id of a P-EAGLE head's mask token. Raises CheckpointError unless config.json names
    one id of the vocabulary."""
    keys = (*OWN_IDS, "mask_token_id")
    stated = {key: config.values[key] for key in keys if config.has(key)}
    for key, token in stated.items():
        if type(token) is not int or not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{config.where}: {key} is {token!r}, expected one of {vocab_size} token ids"
            )
    if len(set(stated.values())) != 1:
        tokens = ", ".join(f"{key} {token}" for key, token in stated.items()) or "none"
        raise CheckpointError(
            f"{config.where}: a P-EAGLE head names one mask token ({' or '.join(keys)}): {tokens}"
        )
    return int(next(iter(stated.values())))
