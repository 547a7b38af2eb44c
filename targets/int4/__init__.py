"""INT4 weights: one canonical layout, readers of stored formats, and INT8 as two INT4 digits."""

from eagle_aot.targets.int4.linear import (
    Biased,
    Int4Linear,
    PackedGatedInt4,
    PackedInt4Linear,
    PackedProjections,
    rows_of,
)
from eagle_aot.targets.int4.weight import Int4Weight

__all__ = [
    "Biased", "Int4Linear", "Int4Weight", "PackedGatedInt4", "PackedInt4Linear",
    "PackedProjections", "rows_of",
]  # fmt: skip
