"""The kinds of drafters this version exports, as one plain table."""

from eagle_aot.artifact import DFLASH, GEMMA4_ASSISTANT, NGRAM, P_EAGLE
from eagle_aot.export.drafters import ngram
from eagle_aot.export.drafters.dflash import kind as dflash
from eagle_aot.export.drafters.eagle3 import kind as eagle3
from eagle_aot.export.drafters.eagle3.load import load_draft
from eagle_aot.export.drafters.eagle3.model import KIND as EAGLE3
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.gemma4_assistant import kind as gemma4_assistant
from eagle_aot.export.drafters.peagle import kind as peagle
from eagle_aot.export.drafters.protocol import DrafterKind, DraftModel, HeadKind

__all__ = [
    "HEADS",
    "KINDS",
    "OF_DUMMIES",
    "kind_of",
    "kind_of_checkpoint",
    "load_draft",
    "name_of_kind",
]

HEADS: dict[str, HeadKind] = {
    GEMMA4_ASSISTANT: gemma4_assistant,
    DFLASH: dflash,
    P_EAGLE: peagle,
    EAGLE3: eagle3,
}
"""By the name in a manifest; asked in this order. The last one takes whatever is left, and refuses
by name what it does not read."""

KINDS: dict[str, DrafterKind] = {**HEADS, NGRAM: ngram}
"""And what needs no checkpoint."""

OF_DUMMIES = EAGLE3
"""What drafts for a target of random weights unless something else is asked for."""


def kind_of_checkpoint(checkpoint: HeadCheckpoint) -> HeadKind:
    """The first kind that claims a checkpoint."""
    return HEADS[name_of_kind(checkpoint)]


def name_of_kind(checkpoint: HeadCheckpoint) -> str:
    """How it is called."""
    return next(name for name, kind in HEADS.items() if kind.claims(checkpoint))


def kind_of(drafter: DraftModel) -> DrafterKind:
    """The kind of a drafter that is loaded."""
    return KINDS[drafter.kind]
