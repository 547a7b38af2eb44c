"""What rounds whose texts share rows are expected to emit, by the drafts of the round before."""

from collections.abc import Sequence

from eagle_aot.runtime_runner.adaptive.acceptance import USUAL_MEMORY, RoundSample
from eagle_aot.runtime_runner.decode.shape import Shape

PRIOR = 8.0  # accepted drafts that the head's own probabilities count as


class SurvivalEstimator:
    """Estimates the tokens of a text of shared rows from the last round's survival.

    The rows of the next round go to the drafts that are likeliest to be accepted, so their sum is
    what a round of so many rows would have emitted the last time (as in vLLM's adaptive
    verification, whose number of rows also follows from values one step old). Probabilities of a
    head may be too high or low: they are scaled by how many drafts were accepted of those expected.
    """

    def __init__(self) -> None:
        self._last: list[Sequence[float]] = []
        self._expected = self._accepted = PRIOR

    def add(self, samples: Sequence[RoundSample]) -> None:
        """Learn from the texts of a round with drafts; of one without shared rows, that its texts
        have no survival any more."""
        self._last = [sample.survival for sample in samples if sample.survival]
        for sample in samples:
            if sample.survival and sample.emitted > sample.accepted:  # not cut by the text's end
                keep = 1 - 1 / USUAL_MEMORY
                expected = sum(sample.survival[: sample.drafted])
                self._expected = keep * self._expected + expected
                self._accepted = keep * self._accepted + sample.accepted

    def tokens(self, shapes: Sequence[Shape], remaining_tokens: int) -> dict[Shape, float]:
        """Return the expected tokens of a text, the bonus token included, for each chain whose rows
        texts share; none before there is a round to learn from."""
        if not self._last:
            return {}
        drafts = max(remaining_tokens - 1, 0)
        pool = sorted((p for chain in self._last for p in chain[:drafts]), reverse=True)
        scale, texts = self._accepted / self._expected, len(self._last)
        return {
            shape: 1 + scale * sum(pool[: shape.depth * texts]) / texts
            for shape in shapes
            if shape.is_chain and shape.nodes
        }
