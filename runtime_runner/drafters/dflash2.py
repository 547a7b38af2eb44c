"""A DFlash2 head: a DFlash head whose drafts are a path through the candidates of all places.

One forward gives the logits of every place, `dflash2_scores` those of each candidate after each
candidate of the place before. Shapes: B sequences, T places, C candidates of each.
"""

from dataclasses import dataclass
from itertools import count
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from eagle_aot.artifact import (
    CANDIDATES,
    DFLASH2,
    DFLASH2_BLOCK,
    DFLASH2_SCORES,
    Constants,
    Manifest,
)
from eagle_aot.artifact.manifest import dflash_block_size, head_size
from eagle_aot.common.tensors import arange_cached
from eagle_aot.common.threads import single_threaded_on_cpu
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows
from eagle_aot.runtime_runner.drafters.dflash import DFlashDrafter
from eagle_aot.runtime_runner.drafters.growth import Expanded, Trunk, grow_likely, grow_paths
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.triton_kernels.topk_logprobs import topk_logprobs


@dataclass(frozen=True, slots=True)
class Lattice:
    """The candidates of T places, `ids` int64 [B, T, C] in ascending order, and the `scores`
    float32 [B, T, C, C] of each place's candidates (last) after those of the place before. At the
    first place all candidates before are the bonus token."""

    ids: Tensor
    scores: Tensor

    def walk(self) -> Tensor:
        """Return the path int64 [B, T] that takes the best candidate after each one, of equals that
        with the lower id."""
        best = self.scores.argmax(dim=-1)
        indices = [best[:, 0, :1]]
        for place in range(1, best.shape[1]):
            indices.append(best[:, place].gather(1, indices[-1]))
        return self.ids.gather(2, torch.cat(indices, dim=1).unsqueeze(2)).squeeze(2)

    def after(self, place: int, tokens: Tensor, topk: int) -> Expanded:
        """Return the `topk` likeliest candidates of a place after each of `tokens` int64 [B, F],
        which are candidates of the place before, or the bonus token at the first place."""
        index = tokens.new_zeros(tokens.shape)
        if place:
            before = self.ids[:, place - 1].unsqueeze(1)
            index = (tokens.unsqueeze(2) == before).long().argmax(dim=2)
        wide = index.unsqueeze(2).expand(-1, -1, self.ids.shape[2])
        scores = self.scores[:, place].gather(1, wide)
        with single_threaded_on_cpu(scores):
            scores, order = scores.log_softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        ids = self.ids[:, place].unsqueeze(1).expand(-1, tokens.shape[1], -1).gather(2, order)
        return Expanded(ids[..., :topk], scores[..., :topk], scores[..., :0])


class DFlash2Drafter(DFlashDrafter):
    """Drafts a block at a time, as `DFlashDrafter` does, along a path through its candidates.

    A place has `top_k` candidates, or as many as a tree may have children of a node.
    """

    kind = DFLASH2
    method = DFLASH2_BLOCK

    def __init__(
        self,
        executor: Executor,
        constants: Constants,
        target_ids: Tensor | None,
        block_size: int,
        top_k: int,
    ) -> None:
        super().__init__(executor, constants, target_ids, block_size)
        self.top_k = top_k

    @classmethod
    def open(
        cls, executor: Executor, constants: Constants, target_ids: Tensor | None, manifest: Manifest
    ) -> Self:
        """Make the drafter of an opened artifact; `target_ids` int64 [Vd] are as in `__init__`."""
        top_k = head_size(manifest, "selector_top_k", 1, CANDIDATES)
        rows = dflash_block_size(manifest, cls.method)
        return cls(executor, constants, target_ids, rows, top_k)

    def propose(self, batch: BatchState, shape: Shape) -> Draft:
        """Return a path or a tree of one block's candidates."""
        outputs = self._block(batch.bonus, batch.position, batch.sequences, shape.depth)
        positions = batch.position.unsqueeze(1) + arange_cached(
            1, shape.depth + 1, batch.bonus.device
        )
        candidates = max(self.top_k, shape.topk)
        lattice = self._lattice(
            batch.sampler, outputs, batch.bonus, positions, batch.sequences, candidates
        )
        if shape.is_chain:
            return Draft(lattice.walk())
        places = count()

        def expand(rows: StepRows, features: Tensor, topk: int) -> Expanded:
            return lattice.after(next(places), rows.tokens, topk)

        first = lattice.after(next(places), batch.bonus, shape.topk)
        grow = grow_likely if shape.paths is None else grow_paths
        return grow(shape, Trunk(batch.position, batch.sequences, self.tail_length), first, expand)

    def _drafted(
        self,
        sampler: Sampler,
        outputs: tuple[Tensor, ...],
        before: Tensor,
        positions: Tensor,
        sequences: Tensor,
    ) -> Tensor:
        lattice = self._lattice(sampler, outputs, before, positions, sequences, self.top_k)
        best = lattice.scores[:, :, 0].argmax(dim=-1, keepdim=True)
        return lattice.ids.gather(2, best).squeeze(2)

    def _lattice(
        self,
        sampler: Sampler,
        outputs: tuple[Tensor, ...],
        before: Tensor,
        positions: Tensor,
        sequences: Tensor,
        candidates: int,
    ) -> Lattice:
        """Return the candidates of a block with these `outputs` at `positions` int64 [B, T].

        `before` int64 [B, T] are the tokens before each place, or int64 [B, 1] the bonus token
        alone; then candidates follow those of the place before. Logits of requests that sample have
        the noise of their positions, so the likeliest are those that the target would choose.
        """
        logits, projected = outputs
        noisy = sampler.mode > SamplingMode.GREEDY
        if noisy:
            logits = sampler.perturbed(logits, positions, sequences)
        ids = likeliest(logits, candidates)
        predecessors = before.unsqueeze(2).expand(-1, -1, candidates)
        if before.shape[1] < ids.shape[1]:
            predecessors = torch.cat((predecessors, ids[:, :-1]), dim=1)
        unused = (0, CANDIDATES - candidates)
        (gains,) = self.executor.run(
            DFLASH2_SCORES, pad(predecessors, unused), pad(ids, unused), projected
        )
        gains = gains[..., :candidates, :candidates]
        if noisy:
            gains = gains * sampler.scales(sequences).view(-1, 1, 1, 1)
        return Lattice(ids, logits.gather(2, ids).unsqueeze(2) + gains)


def likeliest(logits: Tensor, count: int) -> Tensor:
    """Return the ids int64 [B, T, count] of the largest of `logits` float32 [B, T, V], in ascending
    order; of equal logits those with the lower ids."""
    with single_threaded_on_cpu(logits):
        if logits.device.type != "cpu":
            return topk_logprobs(logits, count)[1].sort(dim=-1).values
        largest, ids = logits.topk(count, dim=-1)
        least = largest[..., -1:]
        if bool(((logits == least).sum(dim=-1) > (largest == least).sum(dim=-1)).any()):
            ids = logits.sort(dim=-1, descending=True, stable=True).indices[..., :count]
        return ids.sort(dim=-1).values
