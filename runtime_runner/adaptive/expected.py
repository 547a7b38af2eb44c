"""How many tokens the next round is expected to give, of each shape."""

import itertools
import operator
from collections.abc import Iterable

from eagle_aot.runtime_runner.adaptive.estimate import AcceptanceEstimate
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.shapes import LONGEST
from eagle_aot.runtime_runner.adaptive.siblings import Siblings
from eagle_aot.runtime_runner.rounds.outlook import Outlook
from eagle_aot.runtime_runner.rounds.shape import Shape


class ExpectedTokens:
    """Of chains from what was accepted lately, by position. Of a tree from the same of its own
    rounds, by depth, and where there are few of them from the chains': where a chain's draft is
    wrong, a sibling may be right, of which the drafter's calibrated probabilities tell. Where these
    are known of the very next token, they stand for what is usual there.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        """`longest` is the longest chain's, and no tree is deeper."""
        self.longest = longest
        self._chain = AcceptanceEstimate(longest)
        self._trees: dict[Shape, AcceptanceEstimate] = {}
        self._siblings = Siblings()

    def begin(self) -> None:
        """A new text, of which nothing is known but what texts usually were like."""
        for estimate in (self._chain, *self._trees.values()):
            estimate.begin()

    def add(self, shape: Shape, played: Played) -> None:
        """What came of a round of this shape for a text."""
        if played.before is not None:
            self._siblings.add(played.before, played.token)
        if not shape.nodes:
            return
        for tree, estimate in self._trees.items():
            if tree != shape:
                estimate.fade()
        reached = min(shape.depth, played.emitted, self.longest)
        seen = reached, min(played.accepted, reached)
        if shape.is_chain:
            self._chain.add(*seen)
            return
        self._of(shape).add(*seen)
        self._chain.add(*played.chain)

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
        widths = [tree.topk, *[min(tree.topk, 1 + tree.nodes // (2 * tree.depth))] * tree.depth]
        rescued = [
            rate + (1 - rate) * self._siblings.rescue(width)
            for rate, width in zip(chain, widths, strict=False)
        ]
        return self._of(tree).rates(rescued)

    def _of(self, tree: Shape) -> AcceptanceEstimate:
        if tree not in self._trees:
            self._trees[tree] = AcceptanceEstimate(tree.depth)
        return self._trees[tree]
