"""Gemma 4's assistants as a kind of drafter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.export.drafters.target_facts import TargetFacts
from eagle_aot.export.pair import Pair
from eagle_aot.export.self_test.text import Reading, TargetText, run_target
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.gemma4 import Gemma4Target
from eagle_aot.targets.step import Step, chain_tail

__all__ = [
    "claims",
    "describe",
    "load",
    "methods",
    "readings",
    "report",
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadedAssistant(Reading):
    """An assistant as it was loaded, which drafts from the keys in its target's caches."""

    draft: Gemma4Assistant
    target: Gemma4Target

    @torch.no_grad()
    def chain_logits(self, text: TargetText, steps: int) -> Iterator[Tensor]:
        draft, device, last = self.draft, text.tokens.device, text.tokens.shape[1] - 1
        self.target.reset_cache()
        run_target(self.target, text.tokens[:, :last], 0)
        anchors = torch.arange(text.first_anchor, text.slots, device=device).unsqueeze(0)
        first = torch.zeros(1, dtype=torch.int64, device=device)
        step = Step(anchors, first, chain_tail(anchors))
        states = self.aligned(draft.fuse(text.taps(draft.tap_layers)))[:, text.first_anchor :]
        for ahead in range(1, steps + 1):
            tokens = text.tokens[:, (anchors[0] + ahead).clamp(max=last)]
            logits, states = draft.run(self.target, tokens, states, step)
            yield logits[0]


def readings(pair: Pair) -> Iterator[LoadedAssistant]:
    """Yield the one reading: the assistant as it was loaded."""
    draft, target = pair.draft, pair.target
    assert isinstance(draft, Gemma4Assistant) and isinstance(target, Gemma4Target)
    yield LoadedAssistant(target_ids=draft.target_ids, draft=draft, target=target)
