"""The methods of a DFlash head."""

import torch
from torch import Tensor

from eagle_aot.artifact import DFLASH_BLOCK, DFLASH_CONTEXT
from eagle_aot.export.drafters.dflash.model import DFlashDraft, DFlashLayer
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    BATCH,
    LOGITS,
    MethodSpec,
    caches_of,
    features_input,
    step_inputs,
)
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.step import TAIL, Step
from eagle_aot.triton_kernels.sdpa_splitk import is_servable


class DFlashContextMethod(Method):
    """Stores the keys and values of committed tokens: positions int64 [B, T], -1 for padding,
    sequences int64 [B], features [B, T, H].

    Slots are positions. Returns int64 [B, 1], the position after the last one.
    """

    draft: DFlashDraft

    def forward(self, positions: Tensor, sequences: Tensor, features: Tensor) -> Tensor:
        self.draft.store(features, Step(positions, sequences, positions.unsqueeze(-1)))
        return positions[:, -1:] + 1


class DFlashBlockMethod(Method):
    """Runs blocks: tokens int64 [B, T], the bonus token first, all others are replaced by masks;
    positions, sequences and tail of a `Step`, consecutive and after all stored rows.

    Returns what the head's `run_block` does.
    """

    draft: DFlashDraft

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor
    ) -> Tensor | tuple[Tensor, ...]:
        step = Step(positions, sequences, tail, use_splitk=self.use_splitk)
        return self.draft.run_block(tokens, step)


def methods(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    """Return `dflash_context`, for prompts and accepted tokens, and `dflash_block`.

    A head for which the operator for few rows has no kernel keeps the stock attention.
    """
    draft, batch = pair.draft, lengths.max_batch_size
    assert isinstance(draft, DFlashDraft)
    served = use_splitk and all(is_served(draft, layer) for layer in draft.layers)
    step, caches = step_inputs(batch), caches_of(pair, "draft")
    features = features_input(batch, draft.hidden_size, draft.dtype)
    context = MethodSpec(
        module=DFlashContextMethod(pair),
        inputs={name: step[name] for name in ("positions", "sequences")} | features,
        outputs={"stored": ("int64", (BATCH, 1))},
        writes=caches,
        min_rows=1,
        max_rows=lengths.max_draft,
        few_rows=True,
    )
    block = MethodSpec(
        module=DFlashBlockMethod(pair, served),
        inputs=step,
        outputs={LOGITS: ALL_ROWS[LOGITS]},
        writes=caches,
        min_rows=1,
        max_rows=TAIL,
        few_rows=True,
        use_splitk=served,
    )
    return {DFLASH_CONTEXT: context, DFLASH_BLOCK: block}


def is_served(draft: DFlashDraft, layer: torch.nn.Module) -> bool:
    """Return whether the operator for few rows has a kernel for a layer's attention."""
    assert isinstance(layer, DFlashLayer)
    return is_servable(draft.config.layers.num_attention_heads, layer.kv_cache.k)
