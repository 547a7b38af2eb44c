"""EAGLE-3 as a kind of drafter."""

from collections.abc import Sequence

import torch

from eagle_aot.export.drafters.eagle3.describe import decisions, describe_draft, of_dummy, report
from eagle_aot.export.drafters.eagle3.dummy import dummy_draft
from eagle_aot.export.drafters.eagle3.load import build_draft
from eagle_aot.export.drafters.eagle3.methods import methods
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.export.drafters.eagle3.self_test import readings
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.decoder.kv_cache import CacheSpec

__all__ = [
    "claims",
    "describe",
    "load",
    "methods",
    "readings",
    "report",
    "without_checkpoint",
]

describe = describe_draft


def claims(checkpoint: HeadCheckpoint) -> bool:
    """Every one: reading it refuses by name what is not EAGLE-3."""
    return True


def load(
    checkpoint: HeadCheckpoint,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    tap_layers: Sequence[int] | None,
) -> tuple[Eagle3Draft, Facts]:
    """The head, and how it was read: its layout, its taps and its options."""
    head = read_layout(checkpoint, target.num_hidden_layers, tap_layers)
    draft = build_draft(head, target, dtype, caches)
    return draft, decisions(draft.config, head, target.num_hidden_layers)


def without_checkpoint(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[Eagle3Draft, Facts]:
    """A random head; no checkpoint gives reasons."""
    draft = dummy_draft(spec, target, dtype, caches)
    return draft, of_dummy(draft)
