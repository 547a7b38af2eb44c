"""The base class of drafters that are models: their vocabulary, and how they choose tokens."""

from itertools import count
from typing import Self

from torch import Tensor

from eagle_aot.artifact import Constants, Manifest
from eagle_aot.common.tensors import arange_cached
from eagle_aot.common.threads import single_threaded_on_cpu
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows
from eagle_aot.runtime_runner.drafters.growth import Expanded, Trunk, grow_likely, grow_paths
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.triton_kernels.topk_logprobs import topk_logprobs


class HeadDrafter:
    """Base class. `tail_length` is the program's; its caches hold `sequences` sequences."""

    kind: str
    grows_trees = True
    reads_features = True

    def __init__(self, executor: Executor, constants: Constants, target_ids: Tensor | None) -> None:
        """`target_ids` int64 [Vd] are the target's ids of the draft ids, None if they are the
        same."""
        self.executor = executor
        self.tail_length, self.sequences = constants.tail, constants.max_batch_size
        self.target_ids = target_ids
        self._noise_ids = None if target_ids is None else target_ids.int()

    @classmethod
    def open(
        cls, executor: Executor, constants: Constants, target_ids: Tensor | None, manifest: Manifest
    ) -> Self:
        """Make the drafter of an opened artifact; `target_ids` int64 [Vd] are as in `__init__`."""
        return cls(executor, constants, target_ids)

    def _expand(
        self,
        sampler: Sampler,
        logits: Tensor,
        features: Tensor,
        positions: Tensor,
        sequences: Tensor,
        topk: int,
    ) -> Expanded:
        """Return the `topk` most likely tokens at `positions` int64 [B, F].

        `logits` float32 [B, F, Vd] get the noise of requests that sample; `features` [B, F, H] are
        passed on; `sequences` is int64 [B].
        """
        if sampler.mode > SamplingMode.GREEDY:
            logits = sampler.perturbed(logits, positions, sequences, self._noise_ids)
        with single_threaded_on_cpu(logits):
            scores, ids = topk_logprobs(logits, topk)
        return Expanded(self._in_target(ids), scores, features)

    def _draft_in_parallel(self, batch: BatchState, shape: Shape, logits: Tensor) -> Draft:
        """Return drafts that do not depend on each other.

        `logits` float32 [B, depth, Vd] are those of the positions after the bonus tokens. In a tree
        all nodes of a depth have the same children.
        """
        positions = batch.position.unsqueeze(1) + arange_cached(1, shape.depth + 1, logits.device)
        sampler, sequences = batch.sampler, batch.sequences
        logits = self._allowed_first(sampler, logits, sequences)
        if shape.is_chain:
            return Draft(self._choose(sampler, logits, positions, sequences))
        no_features = logits[..., :0]
        by_depth = self._expand(sampler, logits, no_features, positions, sequences, shape.topk)
        depths = count()

        def expand(rows: StepRows, features: Tensor, topk: int) -> Expanded:
            return at_depth(by_depth, next(depths), rows.tokens.shape[1])

        first = at_depth(by_depth, next(depths), 1)
        grow = grow_likely if shape.paths is None else grow_paths
        trunk = Trunk(batch.position, batch.sequences, self.tail_length)
        return grow(shape, trunk, first, expand)

    def _allowed_first(self, sampler: Sampler, logits: Tensor, sequences: Tensor) -> Tensor:
        """Return the logits [B, F, Vd] of drafts so that the constraints of `sequences` int64 [B]
        allow the first one."""
        if not sampler.is_constrained:
            return logits
        return sampler.masks.masked_first(logits, sequences, self._noise_ids)

    def _choose(
        self, sampler: Sampler, logits: Tensor, positions: Tensor, sequences: Tensor
    ) -> Tensor:
        """Return the ids int64 [B, T] that the target would choose at `positions` int64 [B, T] of
        `sequences` int64 [B] if it had these `logits` float32 [B, T, Vd]."""
        return self._in_target(sampler.choose(logits, positions, sequences, self._noise_ids))

    def _in_target(self, ids: Tensor) -> Tensor:
        return ids if self.target_ids is None else self.target_ids[ids]


def at_depth(by_depth: Expanded, depth: int, nodes: int) -> Expanded:
    """Repeat one depth's tokens and scores, of all depths' [B, N, k], for each of `nodes` nodes:
    [B, nodes, k]."""
    tokens, scores = (
        x[:, depth : depth + 1].expand(-1, nodes, -1) for x in (by_depth.tokens, by_depth.scores)
    )
    return Expanded(tokens, scores, scores[..., :0])
