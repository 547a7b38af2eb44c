"""How often a tree has the right draft where the likeliest is wrong, and how it goes on there."""

from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.played import Played

MEMORY = 200.0  # drafts at a depth, after which one counts 1 / e
WEIGHT = 16.0  # drafts, that what is expected counts as


class Rescues:
    """Of a tree's own rounds, by depth: the likeliest drafts that were wrong where all before were
    right, and where a sibling was right; and behind such a sibling, whether any draft was, beside
    what a chain's chance of it was then. Unlike acceptance this changes little from text to text,
    so it is kept until there are new rounds."""

    def __init__(self, depth: int) -> None:
        self._missed = [0.0] * depth
        self._rescued = [0.0] * depth
        self._strayed = [0.0] * depth
        self._went_on = [0.0] * depth

    def add(self, played: Played, chain: Sequence[float]) -> None:
        """A round of the tree, where a chain's drafts have these chances."""
        strayed, keep = False, 1 - 1 / MEMORY
        for depth in range(min(len(self._missed), len(chain), played.emitted)):
            accepted = depth < played.accepted
            if strayed:
                self._strayed[depth] = keep * self._strayed[depth] + chain[depth]
                self._went_on[depth] = keep * self._went_on[depth] + accepted
            elif not accepted or played.ranks[depth + 1]:
                self._missed[depth] = keep * self._missed[depth] + 1
                self._rescued[depth] = keep * self._rescued[depth] + accepted
                strayed = True

    def rates(self, expected: Sequence[float]) -> list[float]:
        """That a sibling is right, at each depth; `expected` is what it is thought to be where
        little is known."""
        counts = zip(self._rescued, self._missed, expected, strict=True)
        return [(r + WEIGHT * thought) / (m + WEIGHT) for r, m, thought in counts]

    def going_on(self, chain: Sequence[float]) -> list[float]:
        """That a draft is right behind a sibling that was, at each depth, as it is of a chain where
        little is known."""
        counts = zip(self._went_on, self._strayed, chain, strict=False)
        return [min(1.0, a * (w + WEIGHT) / (s + WEIGHT)) for w, s, a in counts]
