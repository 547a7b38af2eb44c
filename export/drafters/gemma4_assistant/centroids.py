"""A head that scores the likeliest clusters of the vocabulary and nothing else."""

import torch
from torch import Tensor, nn

from eagle_aot.common.errors import CheckpointError
from eagle_aot.export.drafters.gemma4_assistant.layer import linear
from eagle_aot.targets.decoder.attention import MASKED, additive
from eagle_aot.targets.decoder.norms import cast


class Centroids(nn.Module):
    """C clusters of V / C tokens each, of which the `top_k` likeliest are open.

    Tokens outside of them get `MASKED`, which is no probability at all. transformers gives them the
    smallest score of any row of the call less one, so that rows would feel their neighbours. All of
    the vocabulary is multiplied all the same: an output table in fewer bits cannot be gathered row
    by row, and one table serves every row of a step.
    """

    cluster_of: Tensor

    def __init__(
        self, hidden_size: int, vocab_size: int, clusters: tuple[int, int], dtype: torch.dtype
    ) -> None:
        super().__init__()
        count, self.top_k = clusters
        self.centroids = linear(hidden_size, count, dtype)
        own = torch.arange(vocab_size) // (vocab_size // count)
        self.register_buffer("cluster_of", own, persistent=False)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """features [1, T, H], logits float32 [1, T, V] -> logits with closed clusters masked.

        The least of the open ones is found by taking the largest away `top_k` times: the CUDA
        backend has no kernel that sorts.
        """
        scores = cast(self.centroids(features), torch.float32)
        left, least = scores, scores
        for _ in range(self.top_k):
            least = left.amax(dim=-1, keepdim=True)
            left = torch.where(left >= least, MASKED, left)
        closed = additive(scores >= least)
        return logits + closed.index_select(-1, self.cluster_of)


def clusters_of(ordering: Tensor, count: int, where: str) -> Tensor:
    """Of every token its cluster, int64 [V], from `token_ordering` int64 [V], whose row r of V / C
    tokens are the target's ids in cluster r.

    Raises CheckpointError unless each token stands there once.
    """
    vocab_size = len(ordering)
    if not torch.equal(ordering.sort().values, torch.arange(vocab_size)):
        raise CheckpointError(f"{where}: token_ordering does not name every token once")
    clusters = torch.empty_like(ordering)
    clusters[ordering] = torch.arange(vocab_size) // (vocab_size // count)
    return clusters
