"""DFlash as a kind of drafter."""

from collections.abc import Sequence

import torch

from eagle_aot.export.drafters.dflash.describe import decisions, describe_dflash, report, sizes
from eagle_aot.export.drafters.dflash.dummy import dummy_dflash
from eagle_aot.export.drafters.dflash.load import build_dflash
from eagle_aot.export.drafters.dflash.methods import methods
from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.drafters.dflash.reading import Z_LAB, read_files, recognised_by
from eagle_aot.export.drafters.dflash.self_test.run import self_test
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.decoder.kv_cache import CacheSpec

__all__ = [
    "claims",
    "describe",
    "load",
    "methods",
    "report",
    "self_test",
    "without_checkpoint",
]

describe = describe_dflash


def claims(checkpoint: HeadCheckpoint) -> bool:
    """By what its config calls it; relatives that compute something else are refused by name."""
    return recognised_by(checkpoint) is not None


def load(
    checkpoint: HeadCheckpoint,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    tap_layers: Sequence[int] | None,
) -> tuple[DFlashDraft, Facts]:
    """The head, and how it was read."""
    files = read_files(checkpoint, tap_layers)
    return build_dflash(files, target, dtype, caches), decisions(files)


def without_checkpoint(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[DFlashDraft, Facts]:
    """A random head; no checkpoint gives reasons."""
    draft = dummy_dflash(target, dtype, caches)
    taps = {"value": list(draft.tap_layers), "source": "a dummy taps where public heads do"}
    layout = {"value": Z_LAB, "source": "--drafter"}
    return draft, {"taps": taps, "layout": layout, "flags": {}, "head": sizes(draft.config)}
