"""The methods that an EAGLE-3 head brings."""

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, DRAFT_PREFILL
from eagle_aot.common.errors import PairingError
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    FEATURES,
    ROWS,
    MethodSpec,
    caches_of,
    features_input,
    prompt_inputs,
    seeds_input,
    step_inputs,
)
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets import TapTarget
from eagle_aot.targets.step import PromptChunk, Step
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


class DraftDecodeSeeded(DraftDecode):
    """The same, where a slot may hold a row of a picture in place of a token's embedding:
    `embeddings` [B, T, H] where `given` int64 [B, T] is 1, and not 0."""

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        positions: Tensor,
        sequences: Tensor,
        tail: Tensor,
        features: Tensor,
        embeddings: Tensor,
        given: Tensor,
    ) -> tuple[Tensor, Tensor]:
        step = Step(positions, sequences, tail, splits_keys=self.splits_keys)
        return self.draft.run(seeds(self.draft, tokens, embeddings, given), features, step)


class DraftPrefill(Method):
    """A prompt's slots, which are stored: tokens int64 [1, T], input_pos int64 [T], sequence
    int64 [1] and fused features [1, T, H].

    Returns int64 [1], the slot behind the last. What the head says behind it is for `DraftDecode`,
    which runs that slot alone.
    """

    draft: Eagle3Draft

    def forward(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, features: Tensor
    ) -> Tensor:
        chunk = PromptChunk(input_pos, sequence, streams_keys=self.splits_keys)
        self.draft.store(self.draft.embed(tokens), features, chunk)
        return input_pos[-1:] + 1


class DraftPrefillSeeded(DraftPrefill):
    """The same of a prompt's slots: embeddings [1, T, H], given int64 [1, T]."""

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        input_pos: Tensor,
        sequence: Tensor,
        features: Tensor,
        embeddings: Tensor,
        given: Tensor,
    ) -> Tensor:
        chunk = PromptChunk(input_pos, sequence, streams_keys=self.splits_keys)
        self.draft.store(seeds(self.draft, tokens, embeddings, given), features, chunk)
        return input_pos[-1:] + 1


def seeds(draft: Eagle3Draft, tokens: Tensor, embeddings: Tensor, given: Tensor) -> Tensor:
    """What slots hold beside their features, [B, T, H]."""
    return torch.where((given > 0).unsqueeze(-1), embeddings, draft.embed(tokens))


def check_seeds(draft: Eagle3Draft, target: TapTarget) -> None:
    """Raise PairingError unless a picture's rows are as wide as what the head embeds."""
    if (width := draft.config.hidden_size) != target.hidden_size:
        raise PairingError(
            f"--image-seed picture: a picture's rows have {target.hidden_size} numbers, the head "
            f"embeds {width}: use --image-seed token"
        )


def methods(pair: Pair, lengths: MethodLengths, splits_keys: bool) -> dict[str, MethodSpec]:
    """`draft_decode`, through which a round's slots go, and `draft_prefill` for a prompt's.

    A head of a shape that the operator for few rows has no kernel for keeps the stock attention.
    It has no `draft_prefill`, nor has one on a CPU: the other takes a prompt's slots as well.
    """
    method = DraftDecodeSeeded if lengths.seeds_pictures else DraftDecode
    return methods_of_slots(DRAFT_DECODE, method, pair, lengths, splits_keys)


def methods_of_slots(
    name: str, method: type[Method], pair: Pair, lengths: MethodLengths, splits_keys: bool
) -> dict[str, MethodSpec]:
    """The same with a `method` of another `name` for a round's slots."""
    draft, batch = pair.draft, lengths.max_batch_size
    assert isinstance(draft, Eagle3Draft)
    served = splits_keys and is_served(draft)
    dtype = draft.dtype
    inputs = step_inputs(batch) | features_input(batch, draft.hidden_size, dtype)
    if lengths.seeds_pictures:
        check_seeds(draft, pair.target)
        inputs |= seeds_input(batch, draft.hidden_size, dtype)
    spec = MethodSpec(
        module=method(pair, served),
        inputs=inputs,
        outputs=ALL_ROWS,
        writes=caches_of(pair, "draft"),
        min_rows=1,
        max_rows=lengths.max_draft,
        few_rows=True,
        splits_keys=served,
    )
    return {name: spec} | ({DRAFT_PREFILL: prompt_spec(pair, lengths)} if served else {})


def prompt_spec(pair: Pair, lengths: MethodLengths) -> MethodSpec:
    """Of `draft_prefill`, traced and tuned for many rows."""
    draft, rows = pair.draft, lengths.max_prefill
    assert isinstance(draft, Eagle3Draft)
    features = torch.zeros(1, rows, draft.hidden_size, dtype=draft.dtype)
    inputs = prompt_inputs(rows) | {FEATURES: (features, {1: ROWS})}
    if lengths.seeds_pictures:
        given = torch.zeros(1, rows, dtype=torch.int64)
        by_row = {1: ROWS}
        inputs |= {"embeddings": (torch.zeros_like(features), by_row), "given": (given, by_row)}
    return MethodSpec(
        module=(DraftPrefillSeeded if lengths.seeds_pictures else DraftPrefill)(pair, True),
        inputs=inputs,
        outputs={"stored": ("int64", (1,))},
        writes=caches_of(pair, "draft"),
        min_rows=lengths.min_prefill,
        max_rows=rows,
        few_rows=False,
    )


def is_served(draft: Eagle3Draft) -> bool:
    """Whether the operator for few rows has a kernel for the head's attention."""
    return is_servable(draft.config.num_heads, draft.kv_cache.k)
