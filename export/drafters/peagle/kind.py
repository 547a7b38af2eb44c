"""P-EAGLE as a kind of drafter: an EAGLE-3 head with a mask, which drafts all tokens at once."""

import re
from functools import partial

from torch import Tensor

from eagle_aot.artifact import PEAGLE_DECODE
from eagle_aot.export.drafters.eagle3 import kind as eagle3
from eagle_aot.export.drafters.eagle3.methods import DraftPrefillMethod
from eagle_aot.export.drafters.eagle3.model import ParallelDraft
from eagle_aot.export.drafters.eagle3.reading.names import MASK_HIDDEN, OWN_IDS, canonical
from eagle_aot.export.drafters.files import architectures
from eagle_aot.export.drafters.slots import methods_of_slots
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.checkpoint import Checkpoint
from eagle_aot.targets.step import Step

CLASS = re.compile("PEagle")

load = partial(eagle3.load, parallel=True)
describe = partial(eagle3.describe, parallel=True)
without_checkpoint = partial(eagle3.without_checkpoint, parallel=True)
readings = eagle3.readings


def claims(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has a mask, or its config names P-EAGLE."""
    config, names = checkpoint.config, {canonical(name) for name in checkpoint.names()}
    return (
        MASK_HIDDEN in names
        or config.values.get("speculators_model_type") == "peagle"
        or any(CLASS.search(name) for name in architectures(config))
        or ("fc.weight" in names and any(config.has(key) for key in OWN_IDS))
    )


class PEagleDecodeMethod(Method):
    """Runs draft slots as `DraftDecodeMethod` does: tokens, positions int64 [B, T], sequences int64
    [B], tail int64 [B, T, D] and features [B, T, H]. A token of -1 stands for one that is not known
    yet, and the feature given for it is ignored."""

    draft: ParallelDraft

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        step = Step(positions, sequences, tail, use_splitk=self.use_splitk)
        return self.draft.run(*self.draft.unmasked(tokens, features), step)


def methods(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    """Return `peagle_decode`, and `draft_prefill` under the same conditions as for EAGLE-3."""
    slots = PEagleDecodeMethod, DraftPrefillMethod
    return methods_of_slots(PEAGLE_DECODE, slots, pair, lengths, use_splitk)
