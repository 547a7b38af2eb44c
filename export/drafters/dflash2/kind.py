"""DFlash2 as a kind of drafter: its methods, its dummy and its self-test; else it is as DFlash."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from eagle_aot.artifact import (
    CANDIDATES,
    DFLASH2_BLOCK,
    DFLASH2_SCORES,
    DFLASH_BLOCK,
    DFLASH_CONTEXT,
)
from eagle_aot.export.drafters.dflash import kind as dflash
from eagle_aot.export.drafters.dflash import methods as dflash_methods
from eagle_aot.export.drafters.dflash2.checkpoint import read_files, recognise
from eagle_aot.export.drafters.dflash2.model import DFlash2Config, DFlash2Draft
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    BATCH,
    FEATURES,
    LOGITS,
    ROWS,
    Input,
    MethodSpec,
    typical_shape,
)
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets import TapTarget
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.pre_norm.config import SLIDING
from eagle_aot.targets.step import TAIL, Step

__all__ = ["claims", "describe", "load", "methods", "readings", "without_checkpoint"]

LAYERS = (SLIDING,) * 5
BLOCK, TAPS, GROUP, RANK = 8, 2, 16, 256
"""Of the published head for Gemma-4-31B: rows of a block, rows and channels of a group that a
convolution reads, rank of the selector."""
PROJECTED, SCORES = "projected", "scores"


def claims(checkpoint: Checkpoint) -> bool:
    """Return whether config or tensors name DFlash2 or a form of it, which `load` may refuse."""
    return recognise(checkpoint) is not None


def dummy_config(target: TapTarget) -> DFlash2Config:
    """Return the config of a random head for a target."""
    common = dflash.dummy_config(target)
    layers = replace(common.layers, layer_types=LAYERS)
    return DFlash2Config.extend(
        replace(common, layers=layers, block_size=BLOCK, causal_windows=False),
        conv_kernel_size=TAPS,
        conv_group_size=next(n for n in range(GROUP, 0, -1) if common.hidden_size % n == 0),
        selector_rank=RANK,
        selector_top_k=CANDIDATES,
    )


FORM = dflash.Form(DFlash2Draft, read_files, dummy_config)

load = partial(dflash.load, form=FORM)
describe = partial(dflash.describe, form=FORM)
without_checkpoint = partial(dflash.without_checkpoint, form=FORM)


class DFlash2ScoresMethod(Method):
    """Scores candidates: `predecessors` int64 [B, T, C] of the places before, `candidates` int64
    [B, T, C] of T places, and `projected` [B, T, r] of their rows.

    Returns float32 [B, T, C, C]: what a candidate's logit gains after each predecessor.
    """

    draft: DFlash2Draft

    def forward(self, predecessors: Tensor, candidates: Tensor, projected: Tensor) -> Tensor:
        return self.draft.candidate_selector(predecessors, candidates, projected)


def methods(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    """Return `dflash_context`, as for DFlash, `dflash2_block` and `dflash2_scores`."""
    assert isinstance(pair.draft, DFlash2Draft)
    common = dflash_methods.methods(pair, lengths, use_splitk)
    block = common[DFLASH_BLOCK]
    block = replace(block, outputs={LOGITS: ALL_ROWS[LOGITS], PROJECTED: ALL_ROWS[FEATURES]})
    scores = MethodSpec(
        module=DFlash2ScoresMethod(pair),
        inputs=scores_inputs(lengths.max_batch_size, pair.draft),
        outputs={SCORES: ("float32", (BATCH, ROWS, CANDIDATES, CANDIDATES))},
        writes=frozenset(),
        min_rows=1,
        max_rows=TAIL - 1,
        few_rows=True,
    )
    return {
        DFLASH_CONTEXT: common[DFLASH_CONTEXT],
        DFLASH2_BLOCK: block,
        DFLASH2_SCORES: scores,
    }


def scores_inputs(batch: int, draft: DFlash2Draft) -> dict[str, Input]:
    """Return the inputs of `dflash2_scores` for at most `batch` sequences."""
    rows, by_row = typical_shape(batch), {0: BATCH, 1: ROWS}
    ids = torch.zeros(*rows, CANDIDATES, dtype=torch.int64)
    projected = torch.zeros(*rows, draft.config.selector_rank, dtype=draft.dtype)
    return {
        "predecessors": (ids, by_row),
        "candidates": (torch.zeros_like(ids), by_row),
        PROJECTED: (projected, by_row),
    }


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DFlash2Reading(dflash.DFlashReading):
    """A loaded head, whose candidates are scored after the tokens that the target chose."""

    draft: DFlash2Draft

    def _logits(self, tokens: Tensor, step: Step) -> Tensor:
        logits, projected = self.draft.run_block(tokens, step)
        unary, candidates = logits.topk(self.draft.config.selector_top_k, dim=-1)
        before = tokens.roll(1, dims=1).unsqueeze(-1).expand_as(candidates)
        pairs = self.draft.candidate_selector(before, candidates, projected)
        others = torch.full_like(logits, -torch.inf)
        return others.scatter(2, candidates, unary + pairs[:, :, 0])[0, 1:]


def readings(pair: Pair) -> Iterator[DFlash2Reading]:
    """Yield the only reading: the head as it was loaded."""
    assert isinstance(pair.draft, DFlash2Draft)
    yield DFlash2Reading(target_ids=pair.draft.target_ids, draft=pair.draft)
