"""The methods of an EAGLE-3 head."""

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.drafters.slots import methods_of_slots
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import MethodSpec
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.step import PromptChunk, Step


class DraftDecodeMethod(Method):
    """Runs draft slots: slot j has token j + 1 and the feature of position j.

    tokens int64 [B, T] of a `Step` whose positions are slots; features [B, T, H], fused for
    committed slots and recurrent for proposed ones. Returns logits float32 [B, T, Vd] and the
    recurrent features [B, T, H].
    """

    draft: Eagle3Draft

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        step = Step(positions, sequences, tail, use_splitk=self.use_splitk)
        return self.draft.run(self.draft.embed(tokens), features, step)


class DraftPrefillMethod(Method):
    """Stores the slots of a prompt chunk in the head's caches.

    tokens int64 [1, T], input_pos int64 [T], sequence int64 [1] and fused features [1, T, H]. Where
    prompts may contain images, a slot may have a row of an image instead of a token's embedding:
    `embeddings` [1, T, H] where `is_image` int64 [1, T] is not 0. Returns int64 [1], the slot after
    the last one. `DraftDecodeMethod` runs it again, because this method returns no logits.
    """

    draft: Eagle3Draft

    def forward(
        self,
        tokens: Tensor,
        input_pos: Tensor,
        sequence: Tensor,
        features: Tensor,
        embeddings: Tensor | None = None,
        is_image: Tensor | None = None,
    ) -> Tensor:
        chunk = PromptChunk(input_pos, sequence, use_prompt_kernel=self.use_splitk)
        embedded = self.draft.embed(tokens)
        if embeddings is not None and is_image is not None:
            embedded = torch.where((is_image > 0).unsqueeze(-1), embeddings, embedded)
        self.draft.store(embedded, features, chunk)
        return input_pos[-1:] + 1


def methods(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    """Return `draft_decode`, which runs a round's slots, and `draft_prefill` for a prompt's slots.

    A head whose shape the operator for few rows does not serve keeps the stock attention.
    `draft_prefill` is there where that operator serves the head, and where the head reads images;
    otherwise `draft_decode` runs a prompt's slots as well.
    """
    slots = DraftDecodeMethod, DraftPrefillMethod
    return methods_of_slots(DRAFT_DECODE, slots, pair, lengths, use_splitk)
