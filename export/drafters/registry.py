"""The kinds of drafters this version exports, as one plain table."""

from eagle_aot.export.drafters.eagle3 import kind as eagle3
from eagle_aot.export.drafters.eagle3.load import load_draft
from eagle_aot.export.drafters.eagle3.model import KIND as EAGLE3
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.protocol import Drafter, DrafterKind

__all__ = ["KINDS", "OF_DUMMIES", "kind_of", "kind_of_checkpoint", "load_draft"]

KINDS: dict[str, DrafterKind] = {EAGLE3: eagle3}
"""By the name in a manifest; asked in this order. The last one takes whatever is left, and refuses
by name what it does not read."""

OF_DUMMIES = KINDS[EAGLE3]
"""What drafts for a target without a checkpoint."""


def kind_of_checkpoint(checkpoint: HeadCheckpoint) -> DrafterKind:
    """The first kind that claims a checkpoint."""
    return next(kind for kind in KINDS.values() if kind.claims(checkpoint))


def kind_of(drafter: Drafter) -> DrafterKind:
    """The kind of a drafter that is loaded."""
    return KINDS[drafter.kind]
