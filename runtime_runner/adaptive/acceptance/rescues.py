"""How often a tree has the right draft where the likeliest is wrong."""

from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.played import Played

MEMORY = 200.0  # misses at a depth, after which one counts 1 / e
WEIGHT = 4.0  # misses, that what siblings are expected to be worth counts as


class Rescues:
    """Of a tree's own rounds, by depth: the likeliest drafts that were wrong behind accepted ones,
    and where a sibling was right. Unlike acceptance this changes little from text to text, so it is
    kept until there are new rounds."""

    def __init__(self, depth: int) -> None:
        self._missed = [0.0] * depth
        self._rescued = [0.0] * depth

    def add(self, played: Played) -> None:
        """A round of the tree."""
        for depth in range(min(len(self._missed), played.emitted)):
            accepted = depth < played.accepted
            if accepted and played.ranks[depth + 1] == 0:
                continue
            keep = 1 - 1 / MEMORY
            self._missed[depth] = keep * self._missed[depth] + 1
            self._rescued[depth] = keep * self._rescued[depth] + accepted

    def rates(self, expected: Sequence[float]) -> list[float]:
        """At each depth; `expected` is what it is thought to be where little is known."""
        counts = zip(self._rescued, self._missed, expected, strict=True)
        return [(r + WEIGHT * thought) / (m + WEIGHT) for r, m, thought in counts]
