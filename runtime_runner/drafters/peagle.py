"""A P-EAGLE head behind `peagle_decode`: an EAGLE-3 head that does not read its own drafts.

The first draft of a round is what the last committed slot said; one forward over slots that are
not known yet gives all others.
"""

import torch

from eagle_aot.artifact import MASK, P_EAGLE, PEAGLE_DECODE
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, chain_rows
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter


class PEagleDrafter(Eagle3Drafter):
    """Commits as EAGLE-3's does, and what is committed next overwrites the slots of masks."""

    kind = P_EAGLE
    method = PEAGLE_DECODE

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """All drafts behind the first one of one forward."""
        logits = self.logits(running.sequences)
        if shape.depth > 1:
            assert self._feature is not None, "observe comes before this"
            ahead = shape.depth - 1
            masks = running.bonus.new_full((len(running.sequences), ahead), MASK)
            rows = chain_rows(masks, running.position, running.sequences, self.tail)
            feature = self._feature.index_select(0, running.sequences)  # which does not count
            further, _ = self._run(rows, feature.expand(-1, ahead, -1))
            logits = torch.cat((logits, further), dim=1)
        return self._at_once(running, shape, logits)
