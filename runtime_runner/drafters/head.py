"""What every drafter has that is a model: its vocabulary, and how it chooses from its logits."""

from itertools import count

from torch import Tensor

from eagle_aot.artifact import Constants
from eagle_aot.common.threads import one_on_a_cpu
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, StepRows, arange_cached
from eagle_aot.runtime_runner.drafters.growth import Expanded, Trunk, grow_likely, grow_paths
from eagle_aot.runtime_runner.program.executor import Executor
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from eagle_aot.triton_kernels.topk_logprobs import topk_logprobs


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
        if sampler.kind > SamplingMode.GREEDY:
            logits = sampler.perturbed(logits, positions, sequences, self._noise_ids)
        return self._likeliest_of(logits, features, topk)

    def _at_once(self, running: BatchState, shape: Shape, logits: Tensor) -> Draft:
        """Drafts where what stands at a place does not depend on the drafts before it: `logits`
        [B, depth, Vd] are about the places behind the bonus tokens. A tree has the same tokens
        behind each of its nodes at a depth."""
        places = running.position.unsqueeze(1) + arange_cached(1, shape.depth + 1, logits.device)
        where = running.sampler, logits
        if shape.is_chain:
            return Draft(self._choice(*where, places, running.sequences))
        none = logits[..., :0]
        found = self._expanded(*where, none, places, running.sequences, shape.topk)
        depths = count()

        def expand(rows: StepRows, features: Tensor, topk: int) -> Expanded:
            return at_depth(found, next(depths), rows.tokens.shape[1])

        first = at_depth(found, next(depths), 1)
        grow = grow_likely if shape.paths is None else grow_paths
        trunk = Trunk(running.position, running.sequences, self.tail)
        return grow(shape, trunk, first, expand)

    def _likeliest_of(self, logits: Tensor, features: Tensor, topk: int) -> Expanded:
        with one_on_a_cpu(logits):
            scores, ids = topk_logprobs(logits, topk)
        return Expanded(self._in_target(ids), scores, features)

    def _choice(
        self, sampler: Sampler, logits: Tensor, positions: Tensor, sequences: Tensor
    ) -> Tensor:
        """What the target would choose at `positions` if it said what the drafter says: ids of its,
        int64 [B, T]."""
        return self._in_target(sampler.draft(logits, positions, sequences, self._noise_ids))

    def _in_target(self, ids: Tensor) -> Tensor:
        return ids if self.target_ids is None else self.target_ids[ids]


def at_depth(found: Expanded, depth: int, nodes: int) -> Expanded:
    """Of what was found at all depths [B, N, k] that behind each of so many nodes [B, F, k]."""
    tokens, scores = (
        x[:, depth : depth + 1].expand(-1, nodes, -1) for x in (found.tokens, found.scores)
    )
    return Expanded(tokens, scores, scores[..., :0])
