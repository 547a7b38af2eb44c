"""INT4 weights: one canonical layout, readers of the formats found on disk, and INT8 in digits."""

from eagle_aot.targets.int4.linear import Biased, Int4Linear
from eagle_aot.targets.int4.packed_linear import (
    PackedGatedInt4,
    PackedInt4Linear,
    PackedProjections,
)
from eagle_aot.targets.int4.weight import Int4Weight

__all__ = [
    "Biased",
    "Int4Linear",
    "Int4Weight",
    "PackedGatedInt4",
    "PackedInt4Linear",
    "PackedProjections",
]
