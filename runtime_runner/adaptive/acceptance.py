"""How many tokens a round is expected to emit, from the drafts that were accepted before."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from eagle_aot.runtime_runner.decode.round import Outcome
from eagle_aot.runtime_runner.decode.shape import MAX_AUTO_DEPTH, Shape

REQUEST_MEMORY = 48  # rounds, after which one counts 1 / e in the rates of a request
USUAL_MEMORY = 512  # rounds, after which one counts 1 / e in the usual rates
USUAL_WEIGHT = 4.0  # rounds that the usual rates count as at the start of a request
OPTIMISM = 0.9  # rate of drafts that were never verified, which counts as one round
TREE_MEMORY = 200  # rounds with trees, after which one counts 1 / e
TREE_WEIGHT = 8.0  # misses that the guess about trees counts as


class RoundSample(NamedTuple):
    """A round of one request, up to the request's end: it emitted `emitted` tokens, and the first
    `accepted` of them were drafts. `ranks` are an `Outcome`'s; so are `drafted` and `survival`, of
    shared rows alone."""

    accepted: int
    emitted: int
    ranks: Sequence[int] = ()
    drafted: int | None = None
    survival: Sequence[float] = ()

    @classmethod
    def of(cls, outcome: Outcome, emitted: int) -> "RoundSample":
        """Cut a round's outcome after `emitted` tokens."""
        drafted = outcome.drafted if outcome.survival else None
        accepted = min(outcome.accepted, emitted)
        return cls(accepted, emitted, outcome.ranks, drafted, outcome.survival)

    @property
    def likeliest(self) -> int:
        """The accepted drafts before the first one that is not the likeliest of its siblings."""
        ranks = self.ranks[1 : self.accepted + 1]
        return next((depth for depth, rank in enumerate(ranks) if rank), self.accepted)


class DepthRates:
    """Decaying counts of drafts at each depth, whose predecessors were all accepted."""

    def __init__(self, memory: int) -> None:
        self._keep = 1 - 1 / memory
        self.verified = [0.0] * MAX_AUTO_DEPTH
        self.accepted = [0.0] * MAX_AUTO_DEPTH

    def add(self, verified: int, accepted: int) -> None:
        """Add a chain whose first `verified` drafts were verified, and first `accepted` accepted.
        Other depths decay too, so that chains grow again after some time."""
        for depth in range(MAX_AUTO_DEPTH):
            self.verified[depth] = self._keep * self.verified[depth] + (depth < verified)
            self.accepted[depth] = self._keep * self.accepted[depth] + (depth < accepted)

    def restart(self, usual: "DepthRates") -> None:
        """Start from the usual rates, which count as few rounds."""
        for depth, count in enumerate(usual.verified):
            scale = USUAL_WEIGHT / max(count, USUAL_WEIGHT)
            self.verified[depth] = scale * count
            self.accepted[depth] = scale * usual.accepted[depth]

    def rates(self) -> list[float]:
        """Return the acceptance rates. The rate of the depth before counts as one round."""
        rates: list[float] = []
        for verified, accepted in zip(self.verified, self.accepted, strict=True):
            before = rates[-1] if rates else OPTIMISM
            rates.append((accepted + before) / (verified + 1))
        return rates


class TreeMisses:
    """How often a tree accepts no draft at a depth that it reaches, in relation to a chain.

    This depends on the head and the shape, and less on the text than a chain's rates do. It starts
    from a guess, to which it returns while other trees run, so that every tree is tried again.
    """

    def __init__(self) -> None:
        self._counts: dict[Shape, tuple[list[float], list[float]]] = {}
        """By depth, misses and the guess of them."""

    def add(self, tree: Shape, verified: int, accepted: int, chain: Sequence[float]) -> None:
        """Add a round of a tree, in which a chain would have had these acceptance rates."""
        self._counts.setdefault(tree, ([0.0] * MAX_AUTO_DEPTH, [0.0] * MAX_AUTO_DEPTH))
        keep = 1 - 1 / TREE_MEMORY
        for shape, (missed, guessed) in self._counts.items():
            for depth, rate in enumerate(chain):
                reached = shape == tree and depth < verified
                guess = (1 - rate) * guessed_ratio(tree, depth)
                missed[depth] = keep * missed[depth] + (reached and depth >= accepted)
                guessed[depth] = keep * guessed[depth] + reached * guess

    def rates(self, tree: Shape, chain: Sequence[float]) -> list[float]:
        """Return a tree's acceptance rates by depth, from those of a chain."""
        missed, guessed = self._counts.get(tree, ([0.0] * MAX_AUTO_DEPTH, [0.0] * MAX_AUTO_DEPTH))
        rates = []
        for depth, rate in enumerate(chain[: tree.depth]):
            correction = (missed[depth] + TREE_WEIGHT) / (guessed[depth] + TREE_WEIGHT)
            rates.append(1 - min((1 - rate) * guessed_ratio(tree, depth) * correction, 1.0))
        return rates


def guessed_ratio(tree: Shape, depth: int) -> float:
    """Return a tree's misses over a chain's, about right for the heads that were measured:
    siblings help most at the first depth."""
    return min((1 + depth / 2) / tree.topk**0.5, 1.0)


class AcceptanceEstimator:
    """Estimates the tokens of a round of any shape.

    Those of a chain follow from its acceptance rates (Leviathan et al., arXiv 2211.17192, with a
    rate for each depth), those of a tree from the same rates and how much less often it misses.
    """

    def __init__(self) -> None:
        self._request, self._usual = DepthRates(REQUEST_MEMORY), DepthRates(USUAL_MEMORY)
        self._misses = TreeMisses()

    def begin_request(self) -> None:
        """Start a request, with the usual rates."""
        self._request.restart(self._usual)

    def add(self, shape: Shape, sample: RoundSample) -> None:
        """Learn from a round."""
        drafted = shape.depth if sample.drafted is None else sample.drafted
        verified = min(drafted, sample.emitted)
        accepted = min(sample.accepted, verified)
        if shape.is_chain:
            self._add_chain(verified, accepted)
        else:
            self._misses.add(shape, verified, accepted, self._request.rates())
            self._add_chain(min(sample.likeliest + 1, verified), sample.likeliest)

    def add_predictions(self, correct: Sequence[bool]) -> None:
        """Learn from tokens that were decoded plainly, and whether the drafter would have drafted
        each, as from a chain after every token."""
        for start in range(len(correct)):
            window = correct[start : start + MAX_AUTO_DEPTH]
            accepted = window.index(False) if False in window else len(window)
            self._add_chain(min(accepted + 1, len(window)), accepted)

    def tokens(self, shapes: Sequence[Shape], remaining_tokens: int) -> dict[Shape, float]:
        """Return the expected tokens of a round of each shape, the bonus token included."""
        chain = self._request.rates()[: max(remaining_tokens - 1, 0)]
        rates = {
            s: chain[: s.depth] if s.is_chain else self._misses.rates(s, chain) for s in shapes
        }
        return {shape: 1 + sum(accumulate(by_depth, mul)) for shape, by_depth in rates.items()}

    def _add_chain(self, verified: int, accepted: int) -> None:
        if verified:
            self._request.add(verified, accepted)
            self._usual.add(verified, accepted)
