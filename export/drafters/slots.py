"""The methods of drafters with a slot for each pair of a token and a feature."""

from typing import Protocol, cast

import torch

from eagle_aot.artifact import DRAFT_PREFILL
from eagle_aot.export.drafters.protocol import DraftModel
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
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.triton_kernels.sdpa_splitk import is_servable


class SlotDraft(DraftModel, Protocol):
    """A drafter with a slot for each pair of a token and a feature; `kv_cache` is that of its first
    layer, which has so many query `heads`."""

    dtype: torch.dtype
    heads: int

    @property
    def kv_cache(self) -> KVCache:
        """The cache of its first layer."""


def methods_of_slots(
    name: str,
    slots: tuple[type[Method], type[Method]],
    pair: Pair,
    lengths: MethodLengths,
    use_splitk: bool,
) -> dict[str, MethodSpec]:
    """Return the methods of a head: the first of `slots`, called `name`, runs a round's slots, the
    second one a prompt's."""
    decode, prefill = slots
    draft, batch = cast(SlotDraft, pair.draft), lengths.max_batch_size
    served = use_splitk and is_served(draft)
    dtype = draft.dtype
    spec = MethodSpec(
        module=decode(pair, served),
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
        {DRAFT_PREFILL: prompt_spec(prefill(pair, served), pair, lengths)} if has_prefill else {}
    )


def prompt_spec(method: Method, pair: Pair, lengths: MethodLengths) -> MethodSpec:
    """Return `method` as `draft_prefill`, which is traced and tuned for many rows."""
    draft, rows = cast(SlotDraft, pair.draft), lengths.max_prefill
    features = torch.zeros(1, rows, draft.hidden_size, dtype=draft.dtype)
    inputs = prompt_inputs(rows) | {FEATURES: (features, {1: ROWS})}
    if reads_images(pair):
        is_image = torch.zeros(1, rows, dtype=torch.int64)
        inputs |= {
            "embeddings": (torch.zeros_like(features), {1: ROWS}),
            IS_IMAGE: (is_image, {1: ROWS}),
        }
    return MethodSpec(
        module=method,
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


def is_served(draft: SlotDraft) -> bool:
    """Return whether the operator for few rows has a kernel for the head's attention."""
    return is_servable(draft.heads, draft.kv_cache.k)
