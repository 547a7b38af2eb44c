"""The kinds of drafters that this version exports."""

from pathlib import Path

from eagle_aot.artifact import (
    DFLASH,
    DFLASH2,
    DSPARK,
    EAGLE3,
    GEMMA4_ASSISTANT,
    MTP,
    NGRAM,
    P_EAGLE,
)
from eagle_aot.export.drafters import ngram
from eagle_aot.export.drafters.dflash import kind as dflash
from eagle_aot.export.drafters.dflash2 import kind as dflash2
from eagle_aot.export.drafters.dspark import kind as dspark
from eagle_aot.export.drafters.eagle3 import kind as eagle3
from eagle_aot.export.drafters.eagle3.load import load_draft
from eagle_aot.export.drafters.gemma4_assistant import kind as gemma4_assistant
from eagle_aot.export.drafters.mtp import kind as mtp
from eagle_aot.export.drafters.mtp.checkpoint import ships_with
from eagle_aot.export.drafters.peagle import kind as peagle
from eagle_aot.export.drafters.protocol import DrafterKind, DraftModel, HeadKind
from eagle_aot.targets.checkpoint import Checkpoint

__all__ = [
    "HEADS", "KINDS", "OF_DUMMIES", "kind_of", "kind_of_checkpoint", "load_draft",
    "name_of_kind", "own_drafter",
]  # fmt: skip

HEADS: dict[str, HeadKind] = {
    GEMMA4_ASSISTANT: gemma4_assistant,
    DFLASH2: dflash2,
    DSPARK: dspark,
    DFLASH: dflash,
    MTP: mtp,
    P_EAGLE: peagle,
    EAGLE3: eagle3,
}
"""Kinds of heads by their names in manifests. The first one that claims a checkpoint reads it; the
last one claims all, and refuses by name what is of no known kind."""

KINDS: dict[str, DrafterKind] = {**HEADS, NGRAM: ngram}

OF_DUMMIES = EAGLE3
"""The default drafter of a target with random weights."""


def kind_of_checkpoint(checkpoint: Checkpoint) -> HeadKind:
    return HEADS[name_of_kind(checkpoint)]


def name_of_kind(checkpoint: Checkpoint) -> str:
    return next(name for name, kind in HEADS.items() if kind.claims(checkpoint))


def own_drafter(target_dir: Path) -> str:
    """Return the kind of the head that a target's own checkpoint has; NGRAM if there is none."""
    return MTP if ships_with(target_dir) else NGRAM


def kind_of(drafter: DraftModel) -> DrafterKind:
    return KINDS[drafter.kind]
