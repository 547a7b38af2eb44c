"""How many tokens the next round is expected to give, of each shape."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from eagle_aot.runtime_runner.adaptive.acceptance.estimate import AcceptanceEstimate
from eagle_aot.runtime_runner.adaptive.acceptance.rescues import Rescues
from eagle_aot.runtime_runner.adaptive.acceptance.siblings import Siblings
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.shapes import LONGEST
from eagle_aot.runtime_runner.decode.next_token_probs import NextTokenProbs
from eagle_aot.runtime_runner.decode.shape import Shape


class Expected(NamedTuple):
    """Of a round: the chances that its likeliest first draft is right, and that one `beside` it is;
    and how many drafts are accepted behind the one and behind the other."""

    likeliest: float
    beside: float
    behind_likeliest: float
    behind_beside: float

    @property
    def tokens(self) -> float:
        """With the one that is not drafted."""
        drafts = self.likeliest * (1 + self.behind_likeliest)
        return 1 + drafts + self.beside * (1 + self.behind_beside)

    def given(self, chances: Sequence[float], topk: int) -> "Expected":
        """Where the likeliest next tokens have these chances, of which `topk` are drafted."""
        return self._replace(likeliest=chances[0], beside=sum(chances[1:topk]))


NOTHING = Expected(0.0, 0.0, 0.0, 0.0)


class ExpectedTokens:
    """Of chains from what was accepted lately, by position (Leviathan et al., arXiv 2211.17192,
    with a rate for each). Of a tree the same, as far as it has the chain's drafts; and where such a
    draft is wrong a sibling may be right, behind which less is accepted than on the chain. Its own
    rounds say how often and how much, and as long as there are few, the drafter's calibrated
    probabilities.
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
            self._of(shape).add(played, self._chain.rates())
            self._chain.add(*played.chain)
        elif shape.nodes:
            reached = min(shape.depth, played.emitted, self.longest)
            self._chain.add(reached, min(played.accepted, reached))

    def add_chain(self, reached: int, accepted: int) -> None:
        """What a chain would have come to."""
        self._chain.add(reached, accepted)

    def of(self, shapes: Iterable[Shape], left: int | None = None) -> dict[Shape, Expected]:
        """Of a round of each, as many as are `left` to the text at most."""
        chain = self._chain.rates()
        if left is not None:
            chain = chain[: left - 1]
        return {shape: self._expected(shape, chain) for shape in shapes}

    def chances(self, next_token_probs: NextTokenProbs) -> Sequence[float]:
        """Of each of the tokens that are expected next, as often as such tokens came."""
        return self._siblings.chances(next_token_probs)

    def _expected(self, shape: Shape, chain: Sequence[float]) -> Expected:
        """What is deeper than the longest chain counts as wrong."""
        chain = chain[: shape.depth]
        if shape.is_chain:
            first, *others = chain or (0.0,)
            return Expected(first, 0.0, sum(accumulate(others, mul)), 0.0)
        found, strayed = NOTHING, 0.0
        of_tree = self._of(shape)
        likeliest, goes_on = of_tree.likeliest(chain), of_tree.going_on(chain)
        rescued = of_tree.rates(self._beside(shape))
        for depth in reversed(range(len(chain))):
            right = likeliest[depth]
            found = Expected(right, (1 - right) * rescued[depth], found.tokens - 1, strayed)
            strayed = goes_on[depth] * (1 + strayed)
        return found

    def _beside(self, tree: Shape) -> list[float]:
        """The chance of siblings at each depth, where the likeliest draft is wrong, by the head's
        probabilities."""
        deeper = min(tree.topk, 1 + tree.nodes // (2 * tree.depth))  # behind one, or thereabouts
        beside_first, beside = map(self._siblings.rescue, (tree.topk, deeper))
        return [beside_first, *[beside] * (tree.depth - 1)]

    def _of(self, tree: Shape) -> Rescues:
        if tree not in self._rescues:
            self._rescues[tree] = Rescues(tree.depth)
        return self._rescues[tree]
