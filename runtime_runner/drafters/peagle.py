"""A P-EAGLE head, run by `peagle_decode`: an EAGLE-3 head that does not read its own drafts.

The last committed slot predicted the first draft of a round; one forward over slots with masks
gives all others.
"""

import torch

from eagle_aot.artifact import MASK, P_EAGLE, PEAGLE_DECODE
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import Draft, chain_rows
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter


class PEagleDrafter(Eagle3Drafter):
    """Commits as an EAGLE-3 drafter does; the next committed slots overwrite those of masks."""

    kind = P_EAGLE
    method = PEAGLE_DECODE

    def propose(self, running: BatchState, shape: Shape) -> Draft:
        """Returns the first draft, and all others from one forward."""
        logits = self.logits(running.sequences)
        if shape.depth > 1:
            assert self._feature is not None, "observe comes before this"
            ahead = shape.depth - 1
            masks = running.bonus.new_full((len(running.sequences), ahead), MASK)
            rows = chain_rows(masks, running.position, running.sequences, self.tail)
            feature = self._feature.index_select(0, running.sequences)  # which does not count
            further, _ = self._run(rows, feature.expand(-1, ahead, -1))
            logits = torch.cat((logits, further), dim=1)
        return self._draft_in_parallel(running, shape, logits)
