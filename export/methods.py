"""What is traced: the target's methods, and those that its drafter brings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from eagle_aot.artifact import COPY_ROWS, PREFILL, TARGET_VERIFY
from eagle_aot.export.drafters.registry import kind_of
from eagle_aot.export.encode_image import encoding
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    BATCH,
    LAST_ROW,
    ROWS,
    Input,
    MethodSpec,
    caches_of,
    copy_inputs,
    given_inputs,
    moves_input,
    prompt_inputs,
    returned,
    step_inputs,
)
from eagle_aot.export.pair import Method, Pair
from eagle_aot.targets.decoder.cache_views import copy_rows
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.step import (
    ChunkEmbeds,
    PromptChunk,
    Step,
    one_row_of_rows,
    rows_of_sequences,
)
from eagle_aot.triton_kernels.int4_gemm import set_matvec_max_m


class Prefill(Method):
    """A prompt's chunk: tokens int64 [1, T], input_pos int64 [T], sequence int64 [1].

    Returns logits float32 [1, 1, V] of the last row and the feature of every row [1, T, H], for a
    drafter that reads any.
    """

    def forward(self, tokens: Tensor, input_pos: Tensor, sequence: Tensor) -> tuple[Tensor, ...]:
        chunk = PromptChunk(input_pos, sequence, streams_keys=self.splits_keys)
        logits, taps = self.target.run(tokens, chunk, last_logits_only=True)
        return logits, *self.features(taps)


class PrefillGiven(Method):
    """The same of a chunk whose rows may be given as `ChunkEmbeds` says: embeddings [1, T, H] and
    last_visible int64 [T]."""

    def forward(
        self,
        tokens: Tensor,
        input_pos: Tensor,
        sequence: Tensor,
        embeddings: Tensor,
        last_visible: Tensor,
    ) -> tuple[Tensor, ...]:
        embeds = ChunkEmbeds(embeddings, last_visible)
        chunk = PromptChunk(input_pos, sequence, streams_keys=self.splits_keys, embeds=embeds)
        logits, taps = self.target.run(tokens, chunk, last_logits_only=True)
        return logits, *self.features(taps)


class TargetVerify(Method):
    """Decided tokens and their drafts: tokens int64 [B, T] of a `Step`.

    Returns logits float32 [B, T, V] and features [B, T, H], for a drafter that reads any. T = 1 is
    plain decoding.
    """

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, moves: Tensor
    ) -> tuple[Tensor, ...]:
        step = Step(positions, sequences, tail, moves, self.splits_keys)
        logits, taps = self.target.run(tokens, step)
        features = self.features(one_row_of_rows(taps))
        return logits, *(rows_of_sequences(one, tokens) for one in features)


class CopyRows(Method):
    """Rows that a sequence takes over from another: input_pos int64 [T], `source` int64 [1] and
    `sequence` int64 [1], which is another one.

    Of the target's caches and the drafter's. Returns int64 [1], the position behind the last.
    """

    def forward(self, input_pos: Tensor, source: Tensor, sequence: Tensor) -> Tensor:
        caches = [module for module in self.modules() if isinstance(module, KVCache)]
        chunks = (PromptChunk(input_pos, s, self.splits_keys) for s in (source, sequence))
        copy_rows(caches, *chunks)
        return input_pos[-1:] + 1


def method_specs(
    pair: Pair, lengths: MethodLengths, splits_keys: bool = False
) -> dict[str, MethodSpec]:
    """All methods of an artifact, in the order of their use.

    With `splits_keys` all attend through the operators made for few rows and for prompts, as far as
    these serve a drafter's caches.
    """
    caches, batch = caches_of(pair, "target"), lengths.max_batch_size
    reads_pictures = bool(lengths.image_tokens)
    prefill = MethodSpec(
        module=(PrefillGiven if reads_pictures else Prefill)(pair, splits_keys),
        inputs=prompt_inputs(lengths.max_prefill) | given_rows(pair, lengths),
        outputs=returned(LAST_ROW, pair.draft.tap_layers),
        writes=caches,
        min_rows=lengths.min_prefill,
        max_rows=lengths.max_prefill,
        few_rows=False,
        splits_keys=splits_keys,
    )
    verify = MethodSpec(
        module=TargetVerify(pair, splits_keys),
        inputs=step_inputs(batch) | moves_input(batch),
        outputs=returned(ALL_ROWS, pair.draft.tap_layers),
        writes=caches,
        min_rows=1,
        max_rows=lengths.max_rows,
        few_rows=True,
        splits_keys=splits_keys,
    )
    return {
        PREFILL: prefill,
        TARGET_VERIFY: verify,
        **kind_of(pair.draft).methods(pair, lengths, splits_keys),
        **copying(pair, lengths, splits_keys),
        **encoding(pair, lengths, splits_keys),
    }


def given_rows(pair: Pair, lengths: MethodLengths) -> dict[str, Input]:
    """What a prompt's chunk takes besides where there may be pictures in it."""
    if not lengths.image_tokens:
        return {}
    return given_inputs(lengths.max_prefill, pair.target.hidden_size, pair.target.dtype)


def copying(pair: Pair, lengths: MethodLengths, splits_keys: bool) -> dict[str, MethodSpec]:
    """`copy_rows`, where there are several sequences; by an operator of its own as are others."""
    if lengths.max_batch_size == 1:
        return {}
    spec = MethodSpec(
        module=CopyRows(pair, splits_keys),
        inputs=copy_inputs(lengths.max_prefill),
        outputs={"copied": ("int64", (1,))},
        writes=caches_of(pair, "target") | caches_of(pair, "draft"),
        min_rows=1,
        max_rows=lengths.max_prefill,
        few_rows=True,
    )
    return {COPY_ROWS: spec}


def export_methods(
    specs: Mapping[str, MethodSpec], max_batch_size: int
) -> dict[str, ExportedProgram]:
    """Trace every method. Raises what `torch.export` raises."""
    return {name: trace_method(spec, max_batch_size) for name, spec in specs.items()}


def trace_method(spec: MethodSpec, max_batch_size: int) -> ExportedProgram:
    """One method, with its rows, and its sequences if it takes several, as dynamic dimensions."""
    dims = {ROWS: Dim("rows", min=spec.min_rows, max=spec.max_rows)} if spec.varies else {}
    if max_batch_size > 1:
        dims[BATCH] = Dim("batch", min=1, max=max_batch_size)
    shapes = tuple(
        {at: dims[counts] for at, counts in varies.items() if counts in dims}
        for _, varies in spec.inputs.values()
    )
    examples = tuple(example for example, _ in spec.inputs.values())
    most = max_batch_size * spec.max_rows if spec.few_rows else spec.min_rows - 1
    with torch.no_grad(), matvec_max_m_raised(most):
        program = torch.export.export(spec.module, examples, dynamic_shapes=shapes, strict=False)
        return program.run_decompositions(spec.decompositions) if spec.decompositions else program


@contextmanager
def matvec_max_m_raised(rows: int) -> Iterator[None]:
    """Let linears of up to `rows` rows take the few-rows path while tracing.

    The limit before it is restored on every exit, exceptions included.
    """
    previous = set_matvec_max_m(rows)
    try:
        yield
    finally:
        set_matvec_max_m(previous)
