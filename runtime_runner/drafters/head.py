"""What every drafter has that is a model: its vocabulary, and how it chooses from its logits."""

from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.common.threads import one_on_a_cpu
from eagle_aot.runtime_runner.drafters.growth import Expanded
from eagle_aot.runtime_runner.executors import Executor
from eagle_aot.runtime_runner.sampling.parameters import Choice
from eagle_aot.runtime_runner.sampling.sampler import Sampler


class HeadDrafter:
    """Base. `tail` is the program's, `sequences` as many as it has caches for."""

    kind: str
    grows_trees = True

    def __init__(self, executor: Executor, constants: Constants, target_ids: Tensor | None) -> None:
        """`target_ids` int64 [Vd] are the target's ids of the drafter's; None where they are the
        same."""
        self.executor = executor
        self.tail, self.sequences = constants.tail, constants.max_batch_size
        self.target_ids = target_ids
        self._noise_ids = None if target_ids is None else target_ids.int()

    def _expanded(
        self,
        sampler: Sampler,
        logits: Tensor,
        features: Tensor,
        positions: Tensor,
        sequences: Tensor,
        topk: int,
    ) -> Expanded:
        """What is likeliest at `positions` int64 [B, F]: under noise, once that is known."""
        if sampler.kind > Choice.GREEDY:
            logits = sampler.perturbed(logits, positions, sequences, self._noise_ids)
        return self._likeliest_of(logits, features, topk)

    def _likeliest_of(self, logits: Tensor, features: Tensor, topk: int) -> Expanded:
        with one_on_a_cpu(logits):
            largest, ids = logits.topk(topk, dim=-1)
            scores = largest - logits.logsumexp(dim=-1, keepdim=True)
        return Expanded(self._in_target(ids), scores, features)

    def _choice(
        self, sampler: Sampler, logits: Tensor, positions: Tensor, sequences: Tensor
    ) -> Tensor:
        """What the target would choose at `positions` if it said what the drafter says: ids of its,
        int64 [B, T]."""
        return self._in_target(sampler.draft(logits, positions, sequences, self._noise_ids))

    def _in_target(self, ids: Tensor) -> Tensor:
        return ids if self.target_ids is None else self.target_ids[ids]
