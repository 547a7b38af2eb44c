"""Read a DFlash2 head's checkpoint, in z-lab's layout or in speculators'.

Both are DFlash's with four more options and the tensors of convolutions and of the selector. Files
have the selector's tables without ".weight".
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from eagle_aot.artifact import CANDIDATES
from eagle_aot.common.errors import CheckpointError, UnsupportedError
from eagle_aot.export.drafters.dflash.checkpoint import (
    REFUSED_KEYS,
    REFUSED_TENSORS,
    DFlashFiles,
    own_options,
    read_config,
    recognise_form,
    refuse_others,
)
from eagle_aot.export.drafters.dflash.model import DFlashConfig
from eagle_aot.export.drafters.dflash2.model import DFlash2Config
from eagle_aot.export.drafters.files import architectures
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.config_section import ConfigSection

CLASS, SPECULATORS_TYPE = "DFlash2DraftModel", "dflash2"
OWN_TENSORS = ("candidate_selector.", ".attention_conv.")
OWN_KEYS = ("conv_kernel_size", "selector_rank")
DENSE = "dense"
CODEBOOKS = tuple(f"candidate_selector.{name}_codebook" for name in ("predecessor", "successor"))


def recognise(checkpoint: Checkpoint) -> str | None:
    """Return what shows that a checkpoint is a DFlash2 head of any form; None for other heads."""
    return recognise_form(checkpoint, SPECULATORS_TYPE, own_keys(checkpoint.config), OWN_TENSORS)


def own_keys(config: ConfigSection) -> Iterator[str]:
    """Yield what options say that a head is a DFlash2 head."""
    nested = config.section("dflash_config")
    yield from (f"{key} in dflash_config" for key in OWN_KEYS if nested.has(key))


def read_files(checkpoint: Checkpoint, tap_layers: Sequence[int] | None = None) -> DFlashFiles:
    """Read a head's config; `tap_layers` replace its taps.

    Raises CheckpointError for a config that contradicts itself or its tensors, UnsupportedError for
    other heads and unknown options.
    """
    recognised_by, config = recognise(checkpoint), checkpoint.config
    if recognised_by is None:
        raise UnsupportedError(
            f"{checkpoint.directory}: no DFlash2 head: neither config.json nor tensors say so"
        )
    refuse_other_forms(checkpoint)
    files = read_config(checkpoint, tap_layers, recognised_by)
    options, common = own_options(config), files.config
    if common.draft_vocab_size != common.vocab_size:
        raise UnsupportedError(
            f"{config.where}: a DFlash2 head with a reduced vocabulary: not read"
        )
    names = {name.removesuffix(".weight"): stored for name, stored in files.names.items()}
    tables = {f"{name}.weight": names[name] for name in CODEBOOKS if name in names}
    others = {name: stored for name, stored in files.names.items() if name not in CODEBOOKS}
    return replace(files, config=extended(common, options), names=others | tables)


def refuse_other_forms(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedError for related heads that compute something else."""
    config, directory = checkpoint.config, checkpoint.directory
    for name in architectures(config):
        if name != CLASS and "dflash2" in name.lower():
            raise UnsupportedError(f"{directory}: {name}: not read; of DFlash2, {CLASS} is")
    tensors = {part: what for part, what in REFUSED_TENSORS.items() if "DFlash2" not in what}
    keys = {key: what for key, what in REFUSED_KEYS.items() if "DFlash2" not in what}
    refuse_others(checkpoint, tensors, keys)
    for section in (config, config.section("dflash_config")):
        if section.text("draft_ffn_type", DENSE) != DENSE:
            raise UnsupportedError(f"{directory}: draft_ffn_type: MLPs of experts: not read")


def extended(config: DFlashConfig, options: ConfigSection) -> DFlash2Config:
    """Return `config` with the `options` of convolutions and selector."""
    group, top_k = options.count("conv_group_size"), options.count("selector_top_k")
    if config.hidden_size % group:
        raise CheckpointError(
            f"{options.where}: conv_group_size {group} for a width of {config.hidden_size}"
        )
    if top_k > CANDIDATES:
        raise UnsupportedError(
            f"{options.where}: selector_top_k {top_k}: up to {CANDIDATES} candidates are read"
        )
    return DFlash2Config.extend(
        config,
        conv_kernel_size=options.count("conv_kernel_size", most=config.block_size),
        conv_group_size=group,
        selector_rank=options.count("selector_rank"),
        selector_top_k=top_k,
    )
