"""Which drafts the target would have chosen itself."""

from torch import Tensor


def count_accepted(drafts: Tensor, greedy: Tensor) -> Tensor:
    """How many leading drafts equal the target's greedy choice at their position, int64 [1].

    drafts int64 [1, K]; greedy int64 [1, K + 1], where `greedy[0, i]` is the target's token in the
    place of `drafts[0, i]` and the last one is the bonus.
    """
    return (drafts == greedy[:, :-1]).cumprod(dim=1).sum(dim=1)
