"""The methods that an EAGLE-3 head brings."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE
from eagle_aot.export.drafters.protocol import BATCH, ROWS, MethodSpec
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.pair import Pair
from eagle_aot.targets.step import Step

Inputs = tuple[tuple[Tensor, Mapping[int, str]], ...]


class DraftDecode(Pair):
    """Draft slots: slot j holds token j + 1 and the feature of position j.

    tokens int64 [B, T] of a `Step` whose positions are slots, features [B, T, H], fused for
    committed slots and recurrent for proposed ones. Returns logits float32 [B, T, Vd] and the
    recurrent features [B, T, H].
    """

    splits_keys = False

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        step = Step(positions, sequences, tail, splits_keys=self.splits_keys)
        return self.draft.run(self.draft.embed(tokens), features, step)


def draft_methods(
    pair: Pair, lengths: MethodLengths, splits_keys: Collection[str], step: Inputs
) -> dict[str, MethodSpec]:
    """`draft_decode`; `step` are example inputs of a step.

    A prompt's slots go through it and a round's, by the same kernels.
    """
    module = DraftDecode(pair.target, pair.draft)
    module.splits_keys = DRAFT_DECODE in splits_keys
    tokens, hidden = step[0][0], pair.draft.config.hidden_size
    features = torch.zeros(*tokens.shape, hidden, dtype=pair.draft.embed_tokens.weight.dtype)
    spec = MethodSpec(
        module=module,
        inputs=(*step, (features, {0: BATCH, 1: ROWS})),
        min_rows=1,
        max_rows=lengths.max_draft,
        few_rows=True,
    )
    return {DRAFT_DECODE: spec}
