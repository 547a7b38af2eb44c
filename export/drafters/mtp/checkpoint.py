"""Read the MTP layer of a Qwen3.5 checkpoint: the tensors that are called `mtp.`.

They are in the target's own checkpoint. Where a target in fewer bits was saved without them, they
are read of another one, such as the publisher's. Norms are stored as differences from 1.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle_aot.common.errors import CheckpointError, EagleError, PairingError, UnsupportedError
from eagle_aot.export.drafters.files import architectures
from eagle_aot.export.drafters.mtp.model import MtpDraft
from eagle_aot.export.drafters.target_facts import ANY_CONTEXT
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint, read_config
from eagle_aot.targets.config_section import ConfigSection
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.decoder.weights import check_sizes, load_weights
from eagle_aot.targets.qwen3_5.config import MODEL_TYPES, HybridConfig, read_qwen3_5
from eagle_aot.targets.qwen3_5.model import AttentionLayer, HybridDecoder, centre_norms

PREFIX = re.compile(r"^(\w+\.)*?mtp\.")
SECOND_LAYER = "layers.1."
TABLES = ("embed_tokens.", "lm_head.", "shared_head.")
LAYERS, OWN_TABLES = "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"
CLASS = "Qwen3_5For"
"""How the names of the classes of targets begin; those of heads begin otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MtpFiles:
    """A checkpoint with an MTP layer, whose tensors' names begin with `prefix`; `config` is the
    geometry of the target that it was trained with."""

    checkpoint: Checkpoint
    prefix: str
    config: HybridConfig

    @property
    def directory(self) -> Path:
        """The checkpoint's directory, for messages."""
        return self.checkpoint.directory


def prefixes(checkpoint: Checkpoint) -> set[str]:
    """Return how the names of tensors of MTP layers begin; empty if there are none."""
    found = (PREFIX.match(name) for name in checkpoint.names())
    return {match.group() for match in found if match}


def is_target(checkpoint: Checkpoint) -> bool:
    """Whether a config is that of a target whose publisher adds an MTP layer."""
    config = checkpoint.config
    named = any(name.startswith(CLASS) for name in architectures(config))
    return named and config.values.get("model_type") in MODEL_TYPES


def ships_with(target_dir: Path) -> bool:
    """Return whether a target's checkpoint has an MTP layer that is read; if its weights are
    missing, what its config says."""
    if read_config(target_dir).values.get("model_type") not in MODEL_TYPES:
        return False
    target = Checkpoint(target_dir, needs_weights=False)
    if next(target.names(), None) is None:
        return _text(target.config).values.get(LAYERS) == 1
    try:
        read_files(target, ANY_CONTEXT)
    except EagleError:
        return False
    return True


def read_files(checkpoint: Checkpoint, max_seq_len: int) -> MtpFiles:
    """Read what a checkpoint says of its MTP layer.

    Raises CheckpointError without a layer, UnsupportedError for layers of other families, for
    several, and for one with tables of its own.
    """
    config, directory = checkpoint.config, checkpoint.directory
    kind = config.text("model_type", "")
    if kind not in MODEL_TYPES:
        raise UnsupportedError(
            f"{directory}: no MTP layer that is read: model_type {kind!r}, known: "
            f"{', '.join(MODEL_TYPES)}"
        )
    text, found = _text(config), prefixes(checkpoint)
    if not found:
        raise CheckpointError(f"{directory}: no MTP layer: {_why_none(text)}")
    prefix = min(found)
    _refuse_others(checkpoint, text, prefix)
    return MtpFiles(checkpoint=checkpoint, prefix=prefix, config=read_qwen3_5(config, max_seq_len))


def _text(config: ConfigSection) -> ConfigSection:
    return config.section("text_config") if config.has("text_config") else config


def _why_none(text: ConfigSection) -> str:
    if text.values.get(LAYERS):
        return (
            f"{LAYERS} is {text.values[LAYERS]}, but no tensor is called mtp.*: it was saved "
            "without them; --draft-dir names a checkpoint that has them"
        )
    return "no tensor is called mtp.*"


def _refuse_others(checkpoint: Checkpoint, text: ConfigSection, prefix: str) -> None:
    names = [name.removeprefix(prefix) for name in checkpoint.names() if name.startswith(prefix)]
    several = text.values.get(LAYERS, 1) not in (None, 1)
    if several or any(name.startswith(SECOND_LAYER) for name in names):
        raise UnsupportedError(f"{checkpoint.directory}: several MTP layers: one is read")
    if text.flag(OWN_TABLES) or any(name.startswith(TABLES) for name in names):
        raise UnsupportedError(
            f"{checkpoint.directory}: an MTP layer with tables of its own: not supported"
        )


def check_tensors(draft: MtpDraft, files: MtpFiles) -> None:
    """Raise CheckpointError for missing tensors and wrong shapes; `draft` is on meta."""
    check_sizes(draft.mtp, files.checkpoint, files.prefix)


def new_draft(files: MtpFiles, dtype: torch.dtype, caches: CacheSpec) -> MtpDraft:
    """Make a drafter whose linears have no storage yet."""
    return MtpDraft(files.config, AttentionLayer, dtype, caches)


def load_mtp(files: MtpFiles, target: TapTarget, dtype: torch.dtype, caches: CacheSpec) -> MtpDraft:
    """Load an MTP layer on the host; linears are INT4 where the checkpoint is. Raises
    CheckpointError for damaged files and PairingError for another target."""
    if not isinstance(target, HybridDecoder):
        raise PairingError("the MTP layer was made for a Qwen3.5, and the target is none")
    with torch.device("meta"):
        plan = new_draft(files, dtype, caches)
        plan.check_target(target)
        check_tensors(plan, files)
    draft, prefix = new_draft(files, dtype, caches), files.prefix
    others = tuple(name for name in files.checkpoint.names() if not name.startswith(prefix))
    load_weights(draft.mtp, files.checkpoint, prefix, others, dtype)
    centre_norms(draft.mtp)
    return draft.with_parts_of(target)
