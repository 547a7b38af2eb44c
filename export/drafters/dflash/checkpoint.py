"""Read a DFlash head's checkpoint, in either layout.

z-lab writes one flat Qwen3 config with a `dflash_config`, in which taps are layers whose outputs
are read. vLLM's speculators put the layers into `transformer_layer_config`; their taps are
boundaries. Every tensor must be read, and every parameter filled.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export.drafters.dflash.model import DFlashConfig, DFlashDraft
from eagle_aot.export.drafters.files import architectures, refuse_quantised
from eagle_aot.export.drafters.head_rope import read_head_rope
from eagle_aot.export.drafters.head_tensors import (
    MAPS,
    OUTPUT_TABLE,
    TABLES,
    HeadFiles,
    read_head_tensor,
    read_target_ids,
    target_tables,
)
from eagle_aot.export.spec import checked_tap_layers
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import MAX_LAYERS, ConfigSection
from eagle_aot.targets.decoder.weights import assign, check_shape
from eagle_aot.targets.pre_norm.config import FULL, SLIDING, PreNormConfig
from eagle_aot.targets.step import TAIL

SPECULATORS, Z_LAB = "vLLM speculators", "z-lab"
CLASS, SPECULATORS_TYPE = "DFlashDraftModel", "dflash"
DEFAULT_BLOCK = 16

REFUSED_TENSORS = {
    "aux_hidden_norms.": "a DFlash head in Laguna's form, with a norm for each tap",
    "attention_conv": "a DFlash2 head, with convolutions",
    "candidate_selector": "a DFlash2 head, with a candidate selector",
    "markov_head.": "a DSpark head, whose drafts depend on each other",
    "confidence_head.": "a DSpark head, whose drafts depend on each other",
    "mask_hidden": "a P-EAGLE head, which drafts in parallel",
    "attention_sink_bias": "a DFlash head with attention sinks",
}
REFUSED_KEYS = {
    "selector_rank": "a DFlash2 head",
    "conv_kernel_size": "a DFlash2 head",
    "markov_rank": "a DSpark head, whose drafts depend on each other",
    "sample_from_anchor": "a head whose rows predict the token after their own",
    "attention_sink_bias": "a DFlash head with attention sinks",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashFiles(HeadFiles):
    """What a head's files say; `tap_source` decided the taps."""

    layout: str
    recognised_by: str
    config: DFlashConfig
    tap_source: str


def load_dflash(
    make: Callable[[], DFlashDraft], files: DFlashFiles, target: TapTarget, dtype: torch.dtype
) -> DFlashDraft:
    """Load the head that `make` makes on the host. Raises CheckpointError for damaged files and
    PairingError for another target."""
    with torch.device("meta"):
        check_tensors(make(), files)
    draft = make()
    draft.check_target(target)
    shapes = parameter_shapes(draft)
    tables = target_tables(shapes, files, target, dtype)
    for name, shape in shapes.items():
        assign(draft, name, read_head_tensor(files, name, shape, tables.get(name), dtype))
    config = files.config
    draft.target_ids = read_target_ids(files, config.vocab_size, config.draft_vocab_size)
    return draft.eval()


def check_tensors(draft: DFlashDraft, files: DFlashFiles) -> None:
    """Raise CheckpointError for wrong names and shapes; reads no tensor. `draft` may be meta."""
    shapes = parameter_shapes(draft)
    if unknown := sorted(set(files.names) - set(shapes) - MAPS):
        raise CheckpointError(f"{files.directory}: unknown tensors {', '.join(unknown[:5])}")
    for name, shape in shapes.items():
        if name not in TABLES or name in files.names:
            stored = files.stored(name)
            check_shape(files.checkpoint, stored, files.checkpoint.shape(stored), shape)


def parameter_shapes(draft: DFlashDraft) -> dict[str, torch.Size]:
    """Return the shape of every parameter."""
    return {name: tensor.shape for name, tensor in draft.state_dict().items()}


def recognise(checkpoint: Checkpoint) -> str | None:
    """Return what shows that a checkpoint is a DFlash head of any form; None for other heads."""
    config = checkpoint.config
    if config.values.get("speculators_model_type") == SPECULATORS_TYPE:
        return "speculators_model_type in config.json"
    if config.has("speculators_model_type"):
        return None
    classes = architectures(config)
    if CLASS in classes:
        return f"architectures {CLASS}"
    dspark = any("dspark" in name.lower() for name in classes)
    return "dflash_config in config.json" if config.has("dflash_config") and not dspark else None


def recognise_form(
    checkpoint: Checkpoint, form: str, options: Iterable[str], tensors: Sequence[str]
) -> str | None:
    """Return what shows that a checkpoint is a head of a related form; None for other heads.

    `form` is its type in speculators' configs and a part of its classes' names; `options` are what
    shows it of other options, read last, and `tensors` parts of the names of its own tensors.
    """
    config = checkpoint.config
    if config.has("speculators_model_type"):
        ours = config.values["speculators_model_type"] == form
        return "speculators_model_type in config.json" if ours else None
    classes = (f"architectures {name}" for name in architectures(config) if form in name.lower())
    stored = (f"tensor {n}" for n in checkpoint.names() if any(part in n for part in tensors))
    return next(chain(classes, options, stored), None)


def read_files(checkpoint: Checkpoint, tap_layers: Sequence[int] | None = None) -> DFlashFiles:
    """Read a head's config; `tap_layers` replace its taps.

    Raises CheckpointError for a config that contradicts itself or its tensors, UnsupportedError for
    other heads and unknown options.
    """
    recognised_by = recognise(checkpoint)
    if recognised_by is None:
        raise UnsupportedError(
            f"{checkpoint.directory}: no DFlash head: neither speculators_model_type nor "
            "architectures nor a dflash_config says so"
        )
    refuse_others(checkpoint, REFUSED_TENSORS, REFUSED_KEYS)
    return read_config(checkpoint, tap_layers, recognised_by)


def own_options(config: ConfigSection) -> ConfigSection:
    """Return the section with the head's own options: speculators, and DSpark, have no such one."""
    nested = config.has("dflash_config") and not config.has("speculators_model_type")
    return config.section("dflash_config") if nested else config


def read_config(
    checkpoint: Checkpoint, tap_layers: Sequence[int] | None, recognised_by: str
) -> DFlashFiles:
    """Read what heads of any form have, as `read_files` does."""
    config = checkpoint.config
    speculators = config.has("speculators_model_type")
    options = own_options(config)
    layer = config.section("transformer_layer_config") if speculators else config
    if not layer.values:
        raise CheckpointError(f"{config.where}: no transformer_layer_config")
    taps, tap_source = read_taps(config, options, tap_layers, speculators=speculators)
    names = {n.removeprefix("model."): n for n in checkpoint.names() if "rotary_emb" not in n}
    layers = read_layers(layer)
    cap = "final_logit_softcapping"
    return DFlashFiles(
        checkpoint=checkpoint,
        layout=SPECULATORS if speculators else Z_LAB,
        recognised_by=recognised_by,
        config=DFlashConfig(
            layers=layers,
            target_hidden_size=config.count("target_hidden_size", layers.hidden_size),
            tap_layers=taps,
            draft_vocab_size=draft_vocab_size(config, checkpoint, names, layers.vocab_size),
            block_size=block_size(config, options),
            mask_token_id=mask_token_id(options),
            causal_windows=causal_windows(config, options, speculators=speculators),
            causal=not speculators and config.flag("is_causal"),
            embedding_scale=options.number("input_embedding_scale", 1.0),
            logit_scale=config.number("logit_scale", 1.0)
            * options.number("output_multiplier", 1.0),
            softcap=options.number(cap) if options.has(cap) else None,
        ),
        names=names,
        tap_source=tap_source,
    )


def refuse_others(
    checkpoint: Checkpoint, tensors: Mapping[str, str], keys: Mapping[str, str]
) -> None:
    """Raise UnsupportedError for related heads that compute something else, which parts of the
    names of `tensors`, and `keys` of the config, tell apart."""
    config, directory = checkpoint.config, checkpoint.directory
    for tensor in checkpoint.names():
        for part, what in tensors.items():
            if part in tensor:
                raise UnsupportedError(f"{directory}: {what}: not read")
    for section in (config, config.section("dflash_config")):
        for key, what in keys.items():
            if section.values.get(key):
                raise UnsupportedError(f"{directory}: {what} ({key}): not read")
    if not config.section("dflash_config").flag("use_aux_hidden_state", True):
        raise UnsupportedError(f"{directory}: a DFlash head without taps: not read")
    refuse_quantised(config)
    if (directory / "mask_embedding.pt").is_file():
        raise UnsupportedError(f"{directory}: a mask embedding in mask_embedding.pt: not read")


def read_taps(
    config: ConfigSection,
    options: ConfigSection,
    override: Sequence[int] | None,
    *,
    speculators: bool,
) -> tuple[tuple[int, ...], str]:
    """Return the tapped boundaries, ascending, and what decided them."""
    if override is not None:
        return checked_tap_layers(override), "named by --tap-layers"
    key = "aux_hidden_state_layer_ids" if speculators else "target_layer_ids"
    ids = options.values.get(key)
    least = 0 if speculators else -1  # what the embedding returns
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= least for i in ids):
        raise CheckpointError(f"{config.where}: {key}: {ids!r} is not a list of layers")
    if ids != sorted(set(ids)):
        raise UnsupportedError(f"{config.where}: {key}: {ids} is not ascending")
    if speculators:
        return tuple(ids), f"{key} {ids}: a speculators file names boundaries"
    return tuple(i + 1 for i in ids), f"{key} {ids}: layers whose outputs are tapped"


def read_layers(layer: ConfigSection) -> PreNormConfig:
    """Return the config of the head's layers, which are Qwen3's."""
    for key in ("attention_bias", "mlp_bias"):
        if layer.flag(key):
            raise UnsupportedError(f"{layer.where}: {key} in a DFlash head")
    if (activation := layer.text("hidden_act", "silu")) != "silu":
        raise UnsupportedError(f"{layer.where}: activation {activation!r} in a DFlash head")
    hidden, heads = layer.count("hidden_size"), layer.count("num_attention_heads")
    kinds, window, nested = layer_types(layer), 0, layer.section("dflash_config")
    if SLIDING in kinds:
        overridden = nested.has("swa_window_size")
        window = nested.count("swa_window_size") if overridden else layer.count("sliding_window")
    kv_heads = layer.count("num_key_value_heads", heads)
    head_dim = layer.count("head_dim", hidden // heads)
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
        sliding_window=window,
    )


def layer_types(layer: ConfigSection) -> tuple[str, ...]:
    """Return the listed kinds of layers; if none are listed, all layers have the same one, which is
    sliding if `dflash_config.use_swa` says so."""
    count = layer.count("num_hidden_layers", most=MAX_LAYERS)
    if not layer.has("layer_types"):
        slides = layer.section("dflash_config").flag("use_swa")
        return (SLIDING if slides else FULL,) * count
    kinds = layer.texts("layer_types")
    if len(kinds) != count or set(kinds) - {FULL, SLIDING}:
        raise CheckpointError(f"{layer.where}: layer_types {list(kinds)} for {count} layers")
    return kinds


def causal_windows(config: ConfigSection, options: ConfigSection, *, speculators: bool) -> bool:
    """Return whether rows of a block see only earlier ones in sliding layers."""
    if speculators:
        return not config.flag("sliding_window_non_causal", True)
    return config.flag("is_causal", options.flag("causal", not options.flag("use_swa")))


def block_size(config: ConfigSection, options: ConfigSection) -> int:
    """Return the rows of a block, including the bonus token's."""
    size = config.count("block_size", options.count("block_size", DEFAULT_BLOCK))
    if not 2 <= size <= TAIL:
        raise UnsupportedError(
            f"{config.where}: blocks of {size}: those of 2 to {TAIL} rows are read"
        )
    return size


def mask_token_id(options: ConfigSection) -> int:
    """Return the target's token that represents a mask."""
    token = options.values.get("mask_token_id")
    if type(token) is not int or token < 0:
        raise CheckpointError(f"{options.where}: mask_token_id is {token!r}, expected a token id")
    return token


def draft_vocab_size(
    config: ConfigSection, checkpoint: Checkpoint, names: Mapping[str, str], vocab_size: int
) -> int:
    """Return the rows of the output table, with which the config must agree."""
    stated = config.count("draft_vocab_size", vocab_size)
    if OUTPUT_TABLE not in names:
        if stated != vocab_size:
            raise CheckpointError(
                f"{config.where}: draft_vocab_size is {stated}, and there is no {OUTPUT_TABLE}"
            )
        return vocab_size
    shape = checkpoint.shape(names[OUTPUT_TABLE])
    rows = shape[0] if len(shape) == 2 else 0
    if config.has("draft_vocab_size") and rows != stated:
        raise CheckpointError(
            f"{config.where}: draft_vocab_size is {stated}, {OUTPUT_TABLE} has {rows} rows"
        )
    return rows
