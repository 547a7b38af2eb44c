"""How often a tree has the right draft, on the chain of its likeliest ones and beside it."""

from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.played import Played

MEMORY = 200.0  # drafts at a depth, after which one counts 1 / e
WEIGHT = 16.0  # drafts, that what is expected counts as


class Correction:
    """By depth, how often drafts were right beside how often they were thought to be."""

    def __init__(self, depth: int) -> None:
        self._thought = [0.0] * depth
        self._right = [0.0] * depth

    def add(self, depth: int, chance: float, right: bool) -> None:
        """A draft with this chance."""
        keep = 1 - 1 / MEMORY
        self._thought[depth] = keep * self._thought[depth] + chance
        self._right[depth] = keep * self._right[depth] + right

    def corrected(self, chances: Sequence[float]) -> list[float]:
        """Chances by depth, as they are where little is known."""
        counts = zip(self._right, self._thought, chances, strict=False)
        return [min(1.0, c * (r + WEIGHT) / (t + WEIGHT)) for r, t, c in counts]


class Rescues:
    """Of a tree's own rounds, by depth: of the likeliest drafts, whether each was there and right
    where all before were; where one was not, whether a sibling was right; and behind such a
    sibling, whether any draft was. The first and the last beside what a chain's chance of it was
    then. Unlike acceptance this changes little from text to text, so it is kept until there are new
    rounds."""

    def __init__(self, depth: int) -> None:
        self._missed = [0.0] * depth
        self._rescued = [0.0] * depth
        self._on_chain, self._off_chain = Correction(depth), Correction(depth)

    def add(self, played: Played, chain: Sequence[float]) -> None:
        """A round of the tree, where a chain's drafts have these chances."""
        strayed, keep = False, 1 - 1 / MEMORY
        for depth in range(min(len(self._missed), len(chain), played.emitted)):
            accepted = depth < played.accepted
            if strayed:
                self._off_chain.add(depth, chain[depth], accepted)
                continue
            likeliest = accepted and played.ranks[depth + 1] == 0
            self._on_chain.add(depth, chain[depth], likeliest)
            if not likeliest:
                self._missed[depth] = keep * self._missed[depth] + 1
                self._rescued[depth] = keep * self._rescued[depth] + accepted
                strayed = True

    def likeliest(self, chain: Sequence[float]) -> list[float]:
        """That the likeliest draft is there and right, at each depth, from a chain's chances."""
        return self._on_chain.corrected(chain)

    def rates(self, expected: Sequence[float]) -> list[float]:
        """That a sibling is right, at each depth; `expected` is what it is thought to be where
        little is known."""
        counts = zip(self._rescued, self._missed, expected, strict=True)
        return [(r + WEIGHT * thought) / (m + WEIGHT) for r, m, thought in counts]

    def going_on(self, chain: Sequence[float]) -> list[float]:
        """That a draft is right behind a sibling that was, at each depth, from a chain's."""
        return self._off_chain.corrected(chain)
