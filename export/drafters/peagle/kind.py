"""P-EAGLE as a kind of drafter: EAGLE-3's files and layers, with a mask."""

import re
from collections.abc import Sequence

import torch

from eagle_aot.export.drafters.eagle3.describe import decisions, describe_draft, of_dummy, report
from eagle_aot.export.drafters.eagle3.dummy import dummy_parallel
from eagle_aot.export.drafters.eagle3.load import build_draft
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.eagle3.reading.layout import read_layout
from eagle_aot.export.drafters.eagle3.reading.mask import MASK_HIDDEN, OWN_IDS
from eagle_aot.export.drafters.eagle3.reading.names import canonical
from eagle_aot.export.drafters.eagle3.self_test import readings
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.peagle.methods import methods
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.export.drafters.target_facts import TargetFacts
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

CLASS = re.compile("PEagle")
FC = "fc.weight"


def claims(checkpoint: HeadCheckpoint) -> bool:
    """By its mask, or by what its config calls it."""
    config, names = checkpoint.config, {canonical(name) for name in checkpoint.names()}
    classes = config.texts("architectures") if config.has("architectures") else ()
    return (
        MASK_HIDDEN in names
        or config.values.get("speculators_model_type") == "peagle"
        or any(CLASS.search(name) for name in classes)
        or (FC in names and any(config.has(key) for key in OWN_IDS))
    )


def load(
    checkpoint: HeadCheckpoint,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    tap_layers: Sequence[int] | None,
) -> tuple[Eagle3Draft, Facts]:
    """The head, and how it was read."""
    head = read_layout(checkpoint, target.num_hidden_layers, tap_layers, parallel=True)
    draft = build_draft(head, target, dtype, caches)
    return draft, decisions(draft.config, head, target.num_hidden_layers)


def describe(
    checkpoint: HeadCheckpoint, target: TargetFacts | None, tap_layers: Sequence[int] | None
) -> Facts:
    """As an EAGLE-3 head, and its mask."""
    return describe_draft(checkpoint, target, tap_layers, parallel=True)


def without_checkpoint(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[Eagle3Draft, Facts]:
    """A random head; no checkpoint gives reasons."""
    draft = dummy_parallel(spec, target, dtype, caches)
    return draft, of_dummy(draft)
