"""A DFlash head on disk, in either layout.

z-lab writes one flat Qwen3 config with a `dflash_config`, and layers whose outputs are tapped;
vLLM's speculators put the layers into `transformer_layer_config` and name boundaries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export.drafters.dflash.config import DFlashConfig
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.head_rope import read_head_rope
from eagle_aot.export.spec import checked_tap_layers
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.pre_norm.config import FULL, SLIDING, PreNormConfig
from eagle_aot.targets.step import TAIL

SPECULATORS, Z_LAB = "vLLM speculators", "z-lab"
CLASS, SPECULATORS_TYPE = "DFlashDraftModel", "dflash"
DEFAULT_BLOCK = 16

LM_HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
MAPS = frozenset({"d2t", "t2d"})

REFUSED_TENSORS = {
    "aux_hidden_norms.": "a DFlash head in Laguna's form, with a norm for each tap",
    "attention_conv": "a DFlash2 head, with convolutions",
    "candidate_selector": "a DFlash2 head, with a candidate selector",
    "markov_head.": "a DSpark head, whose drafts hang together",
    "confidence_head.": "a DSpark head, whose drafts hang together",
    "mask_hidden": "a P-EAGLE head, which drafts in parallel",
    "attention_sink_bias": "a DFlash head with attention sinks",
}
REFUSED_KEYS = {
    "selector_rank": "a DFlash2 head",
    "conv_kernel_size": "a DFlash2 head",
    "markov_rank": "a DSpark head, whose drafts hang together",
    "attention_sink_bias": "a DFlash head with attention sinks",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashFiles:
    """What a head's files say. `names` maps our tensor names to those of the checkpoint,
    `tap_source` is what named the taps."""

    checkpoint: HeadCheckpoint
    layout: str
    recognised_by: str
    config: DFlashConfig
    names: Mapping[str, str]
    tap_source: str

    @property
    def directory(self) -> Path:
        """Where it was read, for messages."""
        return self.checkpoint.directory

    def stored(self, name: str) -> str:
        """The checkpoint's name of a tensor, or ours where it has none."""
        return self.names.get(name, name)


def recognised_by(checkpoint: HeadCheckpoint) -> str | None:
    """What says that a checkpoint is a DFlash head, of whatever form; None for another."""
    config = checkpoint.config
    if config.values.get("speculators_model_type") == SPECULATORS_TYPE:
        return "speculators_model_type in config.json"
    if config.has("speculators_model_type"):
        return None
    classes = config.texts("architectures") if config.has("architectures") else ()
    named = [name for name in classes if name in (CLASS, "DFlash2DraftModel")]
    if named:
        return f"architectures {named[0]}"
    dspark = any("dspark" in name.lower() for name in classes)
    return "dflash_config in config.json" if config.has("dflash_config") and not dspark else None


def read_files(checkpoint: HeadCheckpoint, tap_layers: Sequence[int] | None = None) -> DFlashFiles:
    """How a head is understood. `tap_layers` overrule what it says.

    Raises CheckpointError for a config that contradicts itself or its tensors, UnsupportedError for
    another kind of head and for options that are not read.
    """
    found, config = recognised_by(checkpoint), checkpoint.config
    if found is None:
        raise UnsupportedError(
            f"{checkpoint.directory}: no DFlash head: neither speculators_model_type nor "
            "architectures nor a dflash_config says so"
        )
    refuse_others(checkpoint)
    speculators = config.has("speculators_model_type")
    options = config if speculators else config.section("dflash_config")
    layer = config.section("transformer_layer_config") if speculators else config
    if not layer.values:
        raise CheckpointError(f"{config.where}: no transformer_layer_config")
    taps, source = read_taps(config, options, tap_layers, speculators=speculators)
    names = {n.removeprefix("model."): n for n in checkpoint.names() if "rotary_emb" not in n}
    layers = read_layers(layer)
    return DFlashFiles(
        checkpoint=checkpoint,
        layout=SPECULATORS if speculators else Z_LAB,
        recognised_by=found,
        config=DFlashConfig(
            layers=layers,
            target_hidden_size=config.count("target_hidden_size", layers.hidden_size),
            tap_layers=taps,
            draft_vocab_size=draft_vocab_size(config, checkpoint, names, layers.vocab_size),
            block_size=block_size(config, options),
            mask_token_id=mask_token_id(options),
            causal_windows=causal_windows(config, options, speculators=speculators),
            embedding_scale=options.number("input_embedding_scale", 1.0),
            logit_scale=config.number("logit_scale", 1.0),
            softcap=softcap(options),
        ),
        names=names,
        tap_source=source,
    )


def refuse_others(checkpoint: HeadCheckpoint) -> None:
    """Raise UnsupportedError for heads that are related and compute something else, by name."""
    config, where = checkpoint.config, checkpoint.directory
    for tensor in checkpoint.names():
        for part, what in REFUSED_TENSORS.items():
            if part in tensor:
                raise UnsupportedError(f"{where}: {what}: not read")
    for section in (config, config.section("dflash_config")):
        for key, what in REFUSED_KEYS.items():
            if section.values.get(key):
                raise UnsupportedError(f"{where}: {what} ({key}): not read")
        if section.values.get("output_multiplier", 1.0) != 1.0:
            raise UnsupportedError(f"{where}: output_multiplier: not read")
    if "DFlash2DraftModel" in (
        config.texts("architectures") if config.has("architectures") else ()
    ):
        raise UnsupportedError(f"{where}: a DFlash2 head: not read")
    if not config.section("dflash_config").flag("use_aux_hidden_state", True):
        raise UnsupportedError(f"{where}: a DFlash head without taps: not read")
    if config.has("quantization_config"):
        raise UnsupportedError(f"{where}: the head is quantised; only plain weights load")
    if (where / "mask_embedding.pt").is_file():
        raise UnsupportedError(f"{where}: an embedding of its mask in mask_embedding.pt: not read")


def read_taps(
    config: ConfigSection,
    options: ConfigSection,
    override: Sequence[int] | None,
    *,
    speculators: bool,
) -> tuple[tuple[int, ...], str]:
    """Boundaries, ascending, and what named them."""
    if override is not None:
        return checked_tap_layers(override), "named by --tap-layers"
    key = "aux_hidden_state_layer_ids" if speculators else "target_layer_ids"
    ids = options.values.get(key)
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(f"{config.where}: {key}: {ids!r} is not a list of layers")
    if ids != sorted(set(ids)):
        raise UnsupportedError(f"{config.where}: {key}: {ids} is not ascending")
    if speculators:
        return tuple(ids), f"{key} {ids}: a speculators file names boundaries"
    return tuple(i + 1 for i in ids), f"{key} {ids}: layers whose outputs are tapped"


def read_layers(layer: ConfigSection) -> PreNormConfig:
    """The head's own layers, of Qwen3's kind."""
    for key in ("attention_bias", "mlp_bias"):
        if layer.flag(key):
            raise UnsupportedError(f"{layer.where}: {key} in a DFlash head")
    if (activation := layer.text("hidden_act", "silu")) != "silu":
        raise UnsupportedError(f"{layer.where}: activation {activation!r} in a DFlash head")
    hidden, heads = layer.count("hidden_size"), layer.count("num_attention_heads")
    kinds = layer_types(layer)
    kv_heads, head_dim = (
        layer.count("num_key_value_heads", heads),
        layer.count("head_dim", hidden // heads),
    )
    if heads % kv_heads or head_dim % 2:
        raise CheckpointError(
            f"{layer.where}: {heads} query heads, {kv_heads} key/value heads of {head_dim}"
        )
    return PreNormConfig(
        vocab_size=layer.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=layer.count("intermediate_size"),
        layer_types=kinds,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=layer.number("rms_norm_eps"),
        rope=read_head_rope(layer),
        tie_word_embeddings=False,
        qk_norm=True,
        sliding_window=window(layer) if SLIDING in kinds else 0,
    )


def layer_types(layer: ConfigSection) -> tuple[str, ...]:
    """As listed, or all alike: sliding where `dflash_config.use_swa` says so."""
    count = layer.count("num_hidden_layers", most=MAX_LAYERS)
    if not layer.has("layer_types"):
        slides = layer.section("dflash_config").flag("use_swa")
        return (SLIDING if slides else FULL,) * count
    kinds = layer.texts("layer_types")
    if len(kinds) != count or set(kinds) - {FULL, SLIDING}:
        raise CheckpointError(f"{layer.where}: layer_types {list(kinds)} for {count} layers")
    return kinds


def window(layer: ConfigSection) -> int:
    """Of sliding layers: what `dflash_config` says of it, or else the config."""
    nested = layer.section("dflash_config")
    return (
        nested.count("swa_window_size")
        if nested.has("swa_window_size")
        else layer.count("sliding_window")
    )


def causal_windows(config: ConfigSection, options: ConfigSection, *, speculators: bool) -> bool:
    """Whether rows of a block see only those before them, in sliding layers."""
    if speculators:
        return not config.flag("sliding_window_non_causal", True)
    return options.flag("causal", not options.flag("use_swa"))


def block_size(config: ConfigSection, options: ConfigSection) -> int:
    """Rows of a block, the bonus token's among them."""
    nested = options.count("block_size", DEFAULT_BLOCK)
    found = config.count("block_size", nested)
    if not 2 <= found <= TAIL:
        raise UnsupportedError(
            f"{config.where}: blocks of {found}: those of 2 to {TAIL} rows are read"
        )
    return found


def mask_token_id(options: ConfigSection) -> int:
    """The target's token that stands for what is to be filled in."""
    found = options.values.get("mask_token_id")
    if type(found) is not int or found < 0:
        raise CheckpointError(f"{options.where}: mask_token_id is {found!r}, expected a token id")
    return found


def softcap(options: ConfigSection) -> float | None:
    """The cap of the head's logits, if it has one."""
    key = "final_logit_softcapping"
    return options.number(key) if options.has(key) else None


def draft_vocab_size(
    config: ConfigSection, checkpoint: HeadCheckpoint, names: Mapping[str, str], vocab_size: int
) -> int:
    """Rows of the output table; the config must agree."""
    stated = config.count("draft_vocab_size", vocab_size)
    if LM_HEAD not in names:
        if stated != vocab_size:
            raise CheckpointError(
                f"{config.where}: draft_vocab_size is {stated}, and there is no {LM_HEAD}"
            )
        return vocab_size
    shape = checkpoint.shape(names[LM_HEAD])
    rows = shape[0] if len(shape) == 2 else 0
    if config.has("draft_vocab_size") and rows != stated:
        raise CheckpointError(
            f"{config.where}: draft_vocab_size is {stated}, {LM_HEAD} has {rows} rows"
        )
    return rows
