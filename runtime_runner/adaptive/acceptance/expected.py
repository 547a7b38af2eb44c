"""How many tokens the next round is expected to give, of each shape."""

import itertools
import operator
from collections.abc import Iterable

from eagle_aot.runtime_runner.adaptive.acceptance.estimate import AcceptanceEstimate
from eagle_aot.runtime_runner.adaptive.acceptance.rescues import Rescues
from eagle_aot.runtime_runner.adaptive.acceptance.siblings import Siblings
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.shapes import LONGEST
from eagle_aot.runtime_runner.rounds.outlook import Outlook
from eagle_aot.runtime_runner.rounds.shape import Shape


class ExpectedTokens:
    """Of chains from what was accepted lately, by position (Leviathan et al., arXiv 2211.17192,
    with a rate for each). Of a tree the same, and where the likeliest draft is wrong a sibling may
    be right: its own rounds say how often, and as long as there are few, the drafter's calibrated
    probabilities. Where these are known of the very next token, they stand for what is usual there.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        """`longest` is the longest chain's, and no tree is deeper."""
        self.longest = longest
        self._chain = AcceptanceEstimate(longest)
        self._rescues: dict[Shape, Rescues] = {}
        self._siblings = Siblings()

    def begin(self) -> None:
        """A new text, of which nothing is known but what texts usually were like."""
        self._chain.begin()

    def add(self, shape: Shape, played: Played) -> None:
        """What came of a round of this shape for a text."""
        if played.before is not None:
            self._siblings.add(played.before, played.token)
        if not shape.is_chain:
            self._of(shape).add(played)
            self._chain.add(*played.chain)
        elif shape.nodes:
            reached = min(shape.depth, played.emitted, self.longest)
            self._chain.add(reached, min(played.accepted, reached))

    def add_chain(self, reached: int, accepted: int) -> None:
        """What a chain would have come to."""
        self._chain.add(reached, accepted)

    def of(self, shapes: Iterable[Shape], outlook: Outlook | None = None) -> dict[Shape, float]:
        """Tokens of a round of each, behind a text of which `outlook` is known."""
        chances = None if outlook is None else self._siblings.chances(outlook)
        chain, found = self._chain.rates(), {}
        for shape in shapes:
            rates = chain[: shape.depth] if shape.is_chain else self._rates(shape, chain)
            if chances is not None and rates:
                rates = [sum(chances[: shape.topk]), *rates[1:]]
            found[shape] = sum(itertools.accumulate(rates, operator.mul, initial=1.0))
        return found

    def _rates(self, tree: Shape, chain: list[float]) -> list[float]:
        """Of each depth, if the one before is accepted."""
        deeper = min(tree.topk, 1 + tree.nodes // (2 * tree.depth))  # behind one, or thereabouts
        widths = [tree.topk, *[deeper] * (tree.depth - 1)]
        rescued = self._of(tree).rates([self._siblings.rescue(width) for width in widths])
        return [a + (1 - a) * r for a, r in zip(chain, rescued, strict=False)]

    def _of(self, tree: Shape) -> Rescues:
        if tree not in self._rescues:
            self._rescues[tree] = Rescues(tree.depth)
        return self._rescues[tree]
