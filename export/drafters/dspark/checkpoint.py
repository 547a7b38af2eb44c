"""Read a DSpark head's checkpoint, as DeepSpec writes it or as speculators does.

DeepSpec's is one flat Qwen3 config whose blocks draft from the bonus token's row on; speculators'
is DFlash's, whose first row drafts nothing unless `sample_from_anchor` says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export.drafters.dflash.checkpoint import (
    REFUSED_KEYS,
    REFUSED_TENSORS,
    SPECULATORS,
    DFlashFiles,
    own_options,
    read_config,
    recognise_form,
    refuse_others,
)
from eagle_aot.export.drafters.dflash.model import DFlashConfig
from eagle_aot.export.drafters.dspark.model import GATED, VANILLA, DSparkConfig
from eagle_aot.export.drafters.files import architectures
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.pre_norm.config import SLIDING

DEEPSPEC = "DeepSpec"
SPECULATORS_TYPE = "dspark"
CLASSES = ("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator")
AMBIGUOUS = "DSparkDraftModel"
"""Also the class of stages inside DeepSeek-V4's checkpoints."""
MARKOV, CONFIDENCE = "markov_head.", "confidence_head."
OWN = {MARKOV, CONFIDENCE, "markov_rank", "sample_from_anchor"}
RECURRENT = {f"{MARKOV}joint_proj": "a DSpark head whose Markov head is recurrent"}


def recognise(checkpoint: Checkpoint) -> str | None:
    """Return what shows that a checkpoint is a DSpark head of any form; None for other heads."""
    return recognise_form(checkpoint, SPECULATORS_TYPE, own_keys(checkpoint.config), [MARKOV])


def own_keys(config: ConfigSection) -> Iterator[str]:
    """Yield what options say that a head is a DSpark head."""
    for key in [*config.values, *config.section("dflash_config").values]:
        if key == "markov_rank" or key.startswith("dspark_"):
            yield f"{key} in config.json"


def read_files(checkpoint: Checkpoint, tap_layers: Sequence[int] | None = None) -> DFlashFiles:
    """Read a head's config; `tap_layers` replace its taps.

    Raises CheckpointError for a config that contradicts itself or its tensors, UnsupportedError for
    other heads and unknown options.
    """
    recognised_by, config = recognise(checkpoint), checkpoint.config
    if recognised_by is None:
        raise UnsupportedError(
            f"{checkpoint.directory}: no DSpark head: neither config.json nor tensors say so"
        )
    refuse_other_forms(checkpoint)
    files = read_config(checkpoint, tap_layers, recognised_by)
    own = extended(files, options_of(config))
    names = files.names
    if own.confidence_rank is None:
        names = {n: stored for n, stored in names.items() if not n.startswith(CONFIDENCE)}
    layout = files.layout if files.layout == SPECULATORS else DEEPSPEC
    return replace(files, config=own, names=names, layout=layout)


def options_of(config: ConfigSection) -> ConfigSection:
    """Return the options of the whole config, those of a `dflash_config` first."""
    return replace(config, values={**config.values, **own_options(config).values})


def refuse_other_forms(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedError for related heads that compute something else."""
    config, directory = checkpoint.config, checkpoint.directory
    is_speculators = config.has("speculators_model_type")
    for name in architectures(config):
        if "dspark" in name.lower() and name not in CLASSES:
            known = ", ".join(CLASSES)
            raise UnsupportedError(f"{directory}: {name}: not read; of DSpark, {known} are")
        is_qwen3 = config.text("model_type", "") == "qwen3"
        if name == AMBIGUOUS and not is_speculators and not is_qwen3:
            raise UnsupportedError(
                f"{directory}: {name} without speculators_model_type: a stage of DeepSeek-V4, or "
                "of an unknown form: not read"
            )
    for key in config.values:
        if key.startswith("dspark_"):
            raise UnsupportedError(f"{directory}: {key}: a DSpark head inside a target: not read")
    tensors = {part: what for part, what in REFUSED_TENSORS.items() if part not in OWN}
    keys = {key: what for key, what in REFUSED_KEYS.items() if key not in OWN}
    refuse_others(checkpoint, tensors | RECURRENT, keys)


def extended(files: DFlashFiles, options: ConfigSection) -> DSparkConfig:
    """Return the config of `files` with the `options` that only a DSpark head has."""
    config, where = files.config, options.where
    head_type = options.text("markov_head_type", VANILLA)
    if head_type not in (VANILLA, GATED):
        raise UnsupportedError(
            f"{where}: markov_head_type {head_type!r}: {VANILLA} and {GATED} are read"
        )
    if config.softcap is not None:
        raise UnsupportedError(f"{where}: final_logit_softcapping in a DSpark head: not read")
    is_speculators = files.layout == SPECULATORS
    if SLIDING in config.layers.layer_types and not is_speculators:
        raise UnsupportedError(f"{where}: sliding layers in a DSpark head of DeepSpec: not read")
    rank = options.count("markov_rank", markov_rank(files))
    common = replace(config, causal_windows=not options.flag("sliding_window_non_causal"))
    return DSparkConfig.extend(
        common,
        markov_rank=rank,
        markov_head_type=head_type,
        sample_from_anchor=samples_from_anchor(files, options),
        confidence_rank=confidence_rank(files, options, config, rank),
    )


def markov_rank(files: DFlashFiles) -> int | None:
    """Return the columns of the Markov head's table; None if there is no such tensor."""
    table = files.names.get(f"{MARKOV}markov_w1.weight")
    return None if table is None else files.checkpoint.shape(table)[-1]


def samples_from_anchor(files: DFlashFiles, options: ConfigSection) -> bool:
    """Return whether the bonus token's row drafts as well.

    Without the key it does if speculators' config proposes as many tokens as a block has rows, or
    in DeepSpec's form, whose options are not DFlash's.
    """
    key, config = "sample_from_anchor", files.checkpoint.config
    if options.has(key):
        return options.flag(key)
    if files.layout != SPECULATORS:
        return not config.has("dflash_config")
    proposals = config.section("speculators_config").values.get("proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals else None
    proposed = first.get("speculative_tokens") if isinstance(first, dict) else None
    return bool(proposed == files.config.block_size)


def confidence_rank(
    files: DFlashFiles, options: ConfigSection, config: DFlashConfig, rank: int
) -> int | None:
    """Return `DSparkConfig.confidence_rank`: by the tensor, with which options must agree."""
    weight = files.names.get(f"{CONFIDENCE}proj.weight")
    if not options.flag("enable_confidence_head", weight is not None):
        return None
    if weight is None:
        raise CheckpointError(
            f"{options.where}: enable_confidence_head, and there is no {CONFIDENCE}proj.weight"
        )
    width = files.checkpoint.shape(weight)[-1]
    reads_token = options.flag("confidence_head_with_markov", width > config.hidden_size)
    return rank if reads_token else 0
