"""The methods of an EAGLE-3 head."""

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, DRAFT_PREFILL
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    FEATURES,
    IS_IMAGE,
    ROWS,
    MethodSpec,
    caches_of,
    features_input,
    prompt_inputs,
    step_inputs,
)
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.step import PromptChunk, Step
from eagle_aot.triton_kernels.sdpa_splitk import is_servable


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
    return methods_of_slots(DRAFT_DECODE, DraftDecodeMethod, pair, lengths, use_splitk)


def methods_of_slots(
    name: str, method: type[Method], pair: Pair, lengths: MethodLengths, use_splitk: bool
) -> dict[str, MethodSpec]:
    """Return the methods of a head whose `method`, called `name`, runs a round's slots."""
    draft, batch = pair.draft, lengths.max_batch_size
    assert isinstance(draft, Eagle3Draft)
    served = use_splitk and is_served(draft)
    dtype = draft.dtype
    spec = MethodSpec(
        module=method(pair, served),
        inputs=step_inputs(batch) | features_input(batch, draft.hidden_size, dtype),
        outputs=ALL_ROWS,
        writes=caches_of(pair, "draft"),
        min_rows=1,
        max_rows=lengths.max_draft,
        few_rows=True,
        use_splitk=served,
    )
    has_prefill = served or reads_images(pair)
    return {name: spec} | (
        {DRAFT_PREFILL: prompt_spec(pair, lengths, served)} if has_prefill else {}
    )


def prompt_spec(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> MethodSpec:
    """Return `draft_prefill`, which is traced and tuned for many rows."""
    draft, rows = pair.draft, lengths.max_prefill
    assert isinstance(draft, Eagle3Draft)
    features = torch.zeros(1, rows, draft.hidden_size, dtype=draft.dtype)
    inputs = prompt_inputs(rows) | {FEATURES: (features, {1: ROWS})}
    if reads_images(pair):
        is_image = torch.zeros(1, rows, dtype=torch.int64)
        inputs |= {
            "embeddings": (torch.zeros_like(features), {1: ROWS}),
            IS_IMAGE: (is_image, {1: ROWS}),
        }
    return MethodSpec(
        module=DraftPrefillMethod(pair, use_splitk),
        inputs=inputs,
        outputs={"stored": ("int64", (1,))},
        writes=caches_of(pair, "draft"),
        min_rows=lengths.min_prefill,
        max_rows=rows,
        few_rows=False,
    )


def reads_images(pair: Pair) -> bool:
    """Return whether the head reads the rows of images: prompts may contain images, and a row is as
    wide as the head's embeddings. Otherwise the head reads the embedding of the image token."""
    return pair.vision is not None and pair.draft.hidden_size == pair.target.hidden_size


def is_served(draft: Eagle3Draft) -> bool:
    """Return whether the operator for few rows has a kernel for the head's attention."""
    return is_servable(draft.config.num_heads, draft.kv_cache.k)
