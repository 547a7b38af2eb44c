"""Which drafts the target would have chosen itself."""

from collections.abc import Sequence


def count_accepted(drafts: Sequence[int], greedy: Sequence[int]) -> int:
    """How many leading drafts equal the target's greedy choice at their position.

    `greedy[i]` is the target's token in the place of `drafts[i]`; it has one element more than
    `drafts`, the bonus after the last one.
    """
    for count, (draft, choice) in enumerate(zip(drafts, greedy, strict=False)):
        if draft != choice:
            return count
    return len(drafts)
