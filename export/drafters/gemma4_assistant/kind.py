"""Gemma 4's assistants as a kind of drafter."""

from collections.abc import Sequence

import torch

from eagle_aot.common.errors import SettingError
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.gemma4_assistant.describe import (
    NAME,
    STATE,
    decisions,
    describe_assistant,
    report,
    sizes,
)
from eagle_aot.export.drafters.gemma4_assistant.dummy import dummy_assistant
from eagle_aot.export.drafters.gemma4_assistant.load import build_assistant
from eagle_aot.export.drafters.gemma4_assistant.methods import methods
from eagle_aot.export.drafters.gemma4_assistant.model import Gemma4Assistant
from eagle_aot.export.drafters.gemma4_assistant.reading import read_files, recognised_by
from eagle_aot.export.drafters.gemma4_assistant.self_test.run import self_test
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.export.drafters.target_facts import TargetFacts
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


def claims(checkpoint: HeadCheckpoint) -> bool:
    """By model_type, by class or by its two projections."""
    return recognised_by(checkpoint) is not None


def load(
    checkpoint: HeadCheckpoint,
    target: TapTarget,
    dtype: torch.dtype,
    caches: CacheSpec,
    tap_layers: Sequence[int] | None,
) -> tuple[Gemma4Assistant, Facts]:
    """The assistant, and how it was read."""
    check_no_taps(tap_layers)
    files = read_files(checkpoint)
    draft = build_assistant(files, target, dtype, caches)
    return draft, decisions(files, draft)


def describe(
    checkpoint: HeadCheckpoint, target: TargetFacts | None, tap_layers: Sequence[int] | None
) -> Facts:
    """How its files are understood."""
    check_no_taps(tap_layers)
    return describe_assistant(checkpoint, target)


def without_checkpoint(
    spec: TargetSpec, target: TapTarget, dtype: torch.dtype, caches: CacheSpec
) -> tuple[Gemma4Assistant, Facts]:
    """A random assistant; no checkpoint gives reasons."""
    draft = dummy_assistant(target, dtype, caches)
    taps = {"value": list(draft.tap_layers), "source": STATE["value"]}
    layout = {"value": NAME, "source": "--drafter"}
    return draft, {"taps": taps, "layout": layout, "flags": {}, "head": sizes(draft.config)}


def check_no_taps(tap_layers: Sequence[int] | None) -> None:
    """Raise SettingError where taps are named."""
    if tap_layers is not None:
        raise SettingError("--tap-layers: an assistant reads the target's last state: leave it out")
