"""DFlash as a kind of drafter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_aot.export.drafters.dflash.describe import decisions, describe_dflash, report, sizes
from eagle_aot.export.drafters.dflash.dummy import dummy_dflash
from eagle_aot.export.drafters.dflash.load import build_dflash
from eagle_aot.export.drafters.dflash.methods import methods
from eagle_aot.export.drafters.dflash.model import DFlashDraft
from eagle_aot.export.drafters.dflash.reading import Z_LAB, read_files, recognised_by
from eagle_aot.export.drafters.files import HeadCheckpoint
from eagle_aot.export.drafters.protocol import Facts
from eagle_aot.export.pair import Pair
from eagle_aot.export.self_test.text import Reading, TargetText
from eagle_aot.targets import TapTarget, TargetSpec
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.step import MAX_ROWS, chain_step

__all__ = [
    "claims",
    "describe",
    "load",
    "methods",
    "readings",
    "report",
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadedHead(Reading):
    """A head as it was loaded, which drafts one block after another from its caches."""

    draft: DFlashDraft

    @torch.no_grad()
    def chain_logits(self, text: TargetText, steps: int) -> Iterator[Tensor]:
        draft, device = self.draft, text.tokens.device
        features = self.aligned(draft.fuse(text.taps(draft.tap_layers)))
        rows, stored, logits = max(draft.config.block_size, steps + 1), 0, []
        draft.reset_cache()
        for anchor in range(text.first_anchor, text.slots):
            for slots in torch.arange(stored, anchor + 1, device=device).split(MAX_ROWS):
                draft.store(features[:, slots], chain_step(slots))
            stored = anchor + 1
            block = torch.arange(stored, stored + rows, device=device)
            bonus = text.tokens[:, stored : stored + 1].expand(1, rows)
            logits.append(draft.run(bonus, chain_step(block))[0, 1 : steps + 1])
        yield from torch.stack(logits, dim=1)


def readings(pair: Pair) -> Iterator[LoadedHead]:
    """Yield the one reading: the head as it was loaded."""
    assert isinstance(pair.draft, DFlashDraft)
    yield LoadedHead(target_ids=pair.draft.target_ids, draft=pair.draft)
