"""The methods of an MTP layer: those of an EAGLE-3 head, with the target's tables."""

from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE
from eagle_aot.export.drafters.mtp.model import MtpDraft
from eagle_aot.export.drafters.slots import methods_of_slots
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.pre_norm.model import PreNormDecoder
from eagle_aot.targets.step import PromptChunk, Step


class MtpLayerMethod(Method):
    """Runs draft slots: slot j has token j + 1 and the state of position j.

    tokens int64 [B, T] of a `Step` whose positions are slots; features [B, T, H], the target's
    states for committed slots and the layer's for proposed ones. Returns logits float32 [B, T, V]
    and the layer's states [B, T, H].
    """

    target: PreNormDecoder
    draft: MtpDraft

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        step = Step(positions, sequences, tail, use_splitk=self.use_splitk)
        return self.draft.run(self.target, tokens, features, step)


class MtpPromptMethod(Method):
    """Stores the slots of a prompt chunk in the layer's cache.

    tokens int64 [1, T], input_pos int64 [T], sequence int64 [1] and the target's states
    [1, T, H]. Returns int64 [1], the slot after the last one, which `MtpLayerMethod` runs again.
    """

    target: PreNormDecoder
    draft: MtpDraft

    def forward(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, features: Tensor
    ) -> Tensor:
        chunk = PromptChunk(input_pos, sequence, use_prompt_kernel=self.use_splitk)
        self.draft.store(self.target, tokens, features, chunk)
        return input_pos[-1:] + 1


def methods(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    """Return `draft_decode`, and `draft_prefill` where the operator for few rows serves the
    layer."""
    slots = MtpLayerMethod, MtpPromptMethod
    return methods_of_slots(DRAFT_DECODE, slots, pair, lengths, use_splitk)
