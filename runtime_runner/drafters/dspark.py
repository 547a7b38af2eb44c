"""A DSpark head: a DFlash head whose drafts are chosen one after another.

One forward of `dspark_block` gives the logits of every place; `dspark_bias` corrects those of a
place by the token before it. Shapes: B sequences, T places, F tokens before a place.
"""

from collections.abc import Sequence
from itertools import count
from typing import Self

import torch
from torch import Tensor

from eagle_aot.artifact import (
    DSPARK,
    DSPARK_BIAS,
    DSPARK_BLOCK,
    TARGET_VERIFY,
    Constants,
    Manifest,
)
from eagle_aot.artifact.manifest import dflash_block_size, has_head_option, head_flag
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.drafters.growth import Expanded, Trunk, grow_likely, grow_paths
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.sampler import Sampler

LEAST_SURVIVAL = 0.1
"""The least probability to be accepted with which a text that runs alone verifies a draft. A row
pays if it takes a smaller share of the time between two tokens. It is a choice for CPUs, where a
row takes some percent of a plain round: no trained head was measured with it."""


class DSparkDrafter(DFlashDrafter):
    """Drafts a block at a time, as `DFlashDrafter` does, each token after the one before it.

    In a tree, the children of a node are the likeliest tokens after it.
    """

    kind = DSPARK
    method = DSPARK_BLOCK

    def __init__(
        self,
        executor: Executor,
        constants: Constants,
        target_ids: Tensor | None,
        block_size: int,
        first_draft: int,
        *,
        is_confident: bool = False,
        max_lines: int = 0,
    ) -> None:
        """`first_draft` is the first row of a block that drafts: 0 where the bonus token's does.
        `is_confident` says that the head has a confidence head; the texts of a batch then share
        rows in at most `max_lines` lines."""
        super().__init__(executor, constants, target_ids, block_size)
        self.first_draft = first_draft
        self.confident_drafts = block_size - first_draft if is_confident else 0
        self.least_survival, self.max_lines = LEAST_SURVIVAL, max_lines

    @classmethod
    def open(
        cls, executor: Executor, constants: Constants, target_ids: Tensor | None, manifest: Manifest
    ) -> Self:
        """Make the drafter of an opened artifact; `target_ids` int64 [Vd] are as in `__init__`."""
        rows = dflash_block_size(manifest, cls.method)
        first_draft = 0 if head_flag(manifest, "sample_from_anchor") else 1
        return cls(
            executor,
            constants,
            target_ids,
            rows,
            first_draft,
            is_confident=has_head_option(manifest, "confidence_rank"),
            max_lines=constants.max_batch_size * manifest.shapes[TARGET_VERIFY].lines,
        )

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return a chain or a tree of one block's places."""
        logits, states = self._block(batch.bonus, batch.position, batch.sequences, shape.depth)
        sampler, sequences = batch.sampler, batch.sequences
        logits = self._allowed_first(sampler, logits, sequences)
        if shape.is_chain:
            return self._chain(batch, logits, states)
        places = count()

        def after(tokens: Tensor, topk: int) -> Expanded:
            place = next(places)
            corrected, _ = self._corrected(logits, states, place, tokens)
            positions = batch.position.unsqueeze(1).expand_as(tokens) + place + 1
            none = corrected[..., :0]
            return self._expand(sampler, corrected, none, positions, sequences, topk)

        def expand(rows: StepRows, features: Tensor, topk: int) -> Expanded:
            return after(rows.tokens, topk)

        first = after(batch.bonus, shape.topk)
        grow = grow_likely if shape.paths is None else grow_paths
        return grow(shape, Trunk(batch.position, sequences, self.tail_length), first, expand)

    def _chain(self, batch: BatchState, logits: Tensor, states: Tensor) -> Draft:
        """Return a draft for each place of logits [B, T, Vd] and states [B, T, H]."""
        sampler, sequences, tokens = batch.sampler, batch.sequences, [batch.bonus]
        confidence = []
        for place in range(logits.shape[1]):
            corrected, of_place = self._corrected(logits, states, place, tokens[-1])
            confidence += of_place
            positions = batch.position.unsqueeze(1) + place + 1
            chosen = self._choose(sampler, corrected, positions, sequences)
            if sampler.is_constrained:
                chosen = sampler.masks.forced(chosen, place, sequences)
            tokens.append(chosen)
        drafts = torch.cat(tokens[1:], dim=1)
        return Draft(drafts, survival=survival_of(confidence) if confidence else None)

    def _corrected(
        self, logits: Tensor, states: Tensor, place: int, before: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits of a place after each of the tokens `before` it, int64 [B, F]: float32
        [B, F, Vd], for logits [B, T, Vd] and states [B, T, H] of all places.

        Also returns the confidence float32 [B, F, 1], before the sigmoid, of a head that has one.
        """
        of_place = states[:, place : place + 1].expand(-1, before.shape[1], -1)
        bias, *confidence = self.executor.run(DSPARK_BIAS, before, of_place)
        return logits[:, place : place + 1] + bias, confidence

    def _drafted(
        self,
        sampler: Sampler,
        outputs: tuple[Tensor, ...],
        before: Tensor,
        positions: Tensor,
        sequences: Tensor,
    ) -> Tensor:
        logits, states = outputs
        bias, *_ = self.executor.run(DSPARK_BIAS, before, states)
        return self._choose(sampler, logits + bias, positions, sequences)


def survival_of(confidence: Sequence[Tensor]) -> Tensor:
    """Return the probabilities that each draft of a chain is accepted, float32 [B, K], from the
    logits [B, 1, 1] of each draft's to be accepted if those before it were."""
    accepted = torch.cat(list(confidence), dim=1).squeeze(2).sigmoid()
    return accepted.nan_to_num(0.0).cumprod(dim=1)
