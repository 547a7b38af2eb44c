"""The methods that an EAGLE-3 head brings."""

from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    MethodSpec,
    caches_of,
    features_input,
    step_inputs,
)
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.step import Step
from eagle_aot.triton_kernels.sdpa_splitk import is_servable


class DraftDecode(Method):
    """Draft slots: slot j holds token j + 1 and the feature of position j.

    tokens int64 [B, T] of a `Step` whose positions are slots, features [B, T, H], fused for
    committed slots and recurrent for proposed ones. Returns logits float32 [B, T, Vd] and the
    recurrent features [B, T, H].
    """

    draft: Eagle3Draft

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        step = Step(positions, sequences, tail, splits_keys=self.splits_keys)
        return self.draft.run(self.draft.embed(tokens), features, step)


def methods(pair: Pair, lengths: MethodLengths, splits_keys: bool) -> dict[str, MethodSpec]:
    """`draft_decode`, through which a prompt's slots go and a round's, by the same kernels.

    A head of a shape that the operator for few rows has no kernel for keeps the stock attention.
    """
    draft, batch = pair.draft, lengths.max_batch_size
    assert isinstance(draft, Eagle3Draft)
    served = splits_keys and is_served(draft)
    dtype = draft.kv_cache.k.dtype
    spec = MethodSpec(
        module=DraftDecode(pair, served),
        inputs=step_inputs(batch) | features_input(batch, draft.hidden_size, dtype),
        outputs=ALL_ROWS,
        writes=caches_of(pair, "draft"),
        min_rows=1,
        max_rows=lengths.max_draft,
        few_rows=True,
        splits_keys=served,
    )
    return {DRAFT_DECODE: spec}


def is_served(draft: Eagle3Draft) -> bool:
    """Whether the operator for few rows has a kernel for the head's attention."""
    return is_servable(draft.config.num_heads, draft.kv_cache.k)
