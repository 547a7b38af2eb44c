"""The methods that a head brings that drafts in parallel."""

from torch import Tensor

from eagle_aot.artifact import PEAGLE_DECODE
from eagle_aot.export.drafters.eagle3.methods import methods_of_slots
from eagle_aot.export.drafters.eagle3.parallel import ParallelDraft
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.step import Step


class PEagleDecodeMethod(Method):
    """Runs draft slots as `DraftDecodeMethod` does; a token of -1 stands for one that is not known
    yet, and the feature given for it is ignored."""

    draft: ParallelDraft

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        step = Step(positions, sequences, tail, splits_keys=self.splits_keys)
        return self.draft.run(*self.draft.unmasked(tokens, features), step)


def methods(pair: Pair, lengths: MethodLengths, splits_keys: bool) -> dict[str, MethodSpec]:
    """`peagle_decode`, and `draft_prefill` where an EAGLE-3 head has it."""
    return methods_of_slots(PEAGLE_DECODE, PEagleDecodeMethod, pair, lengths, splits_keys)
