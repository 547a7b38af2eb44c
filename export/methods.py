"""The methods of an artifact: the target's, and those that its drafter adds; and their tracing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from eagle_aot.artifact import COPY_ROWS, COPY_STATES, PREFILL, TARGET_VERIFY
from eagle_aot.export.drafters.protocol import SharesRows
from eagle_aot.export.drafters.registry import kind_of
from eagle_aot.export.encode_image import encode_image_specs
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    BATCH,
    LAST_ROW,
    ROWS,
    MethodSpec,
    caches_of,
    copy_inputs,
    embeds_inputs,
    moves_input,
    prompt_inputs,
    step_inputs,
    target_outputs,
)
from eagle_aot.export.pair import Method, Pair
from eagle_aot.export.prepare.dense_rows import read_dense_weights_once
from eagle_aot.export.prepare.screened_table import LARGEST_ONLY, screen_logits
from eagle_aot.export.spec import CUDA
from eagle_aot.targets.decoder.cache_views import copy_rows
from eagle_aot.targets.decoder.kv_cache import KVCache
from eagle_aot.targets.decoder.recurrent_cache import RecurrentCache
from eagle_aot.targets.step import (
    ChunkEmbeds,
    PromptChunk,
    Step,
    one_row_of_rows,
    rows_of_sequences,
)
from eagle_aot.triton_kernels.device import multiprocessors
from eagle_aot.triton_kernels.int4_gemm import set_matvec_max_m


class PrefillMethod(Method):
    """Runs a prompt chunk: tokens int64 [1, T], input_pos int64 [T], sequence int64 [1].

    Returns logits float32 [1, 1, V] of the last row, and features [1, T, H] if the drafter reads
    some.
    """

    def forward(self, tokens: Tensor, input_pos: Tensor, sequence: Tensor) -> tuple[Tensor, ...]:
        chunk = PromptChunk(input_pos, sequence, use_prompt_kernel=self.use_splitk)
        logits, taps = self.target.run(tokens, chunk, last_logits_only=True)
        return logits, *self.features(taps)


class PrefillEmbedsMethod(Method):
    """Runs a prompt chunk as `PrefillMethod` does. Its rows may be embeddings, as `ChunkEmbeds`
    says: embeddings [1, T, H] and last_visible int64 [T]."""

    def forward(
        self,
        tokens: Tensor,
        input_pos: Tensor,
        sequence: Tensor,
        embeddings: Tensor,
        last_visible: Tensor,
    ) -> tuple[Tensor, ...]:
        embeds = ChunkEmbeds(embeddings, last_visible)
        chunk = PromptChunk(input_pos, sequence, use_prompt_kernel=self.use_splitk, embeds=embeds)
        logits, taps = self.target.run(tokens, chunk, last_logits_only=True)
        return logits, *self.features(taps)


class TargetVerifyMethod(Method):
    """Runs decided tokens and their drafts: tokens int64 [B, T], the rows of a `Step`.

    Returns logits float32 [B, T, V], and features [B, T, H] if the drafter reads some. T = 1 is
    plain decoding.
    """

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, moves: Tensor
    ) -> tuple[Tensor, ...]:
        step = Step(positions, sequences, tail, moves, self.use_splitk)
        logits, taps = self.target.run(tokens, step)
        features = self.features(one_row_of_rows(taps))
        return logits, *(rows_of_sequences(feature, tokens) for feature in features)


class ScreenedVerifyMethod(TargetVerifyMethod):
    """A `TargetVerifyMethod` with an INT8 copy of the output table. Where `largest_only` int64 [1]
    is 1, only logits that equal the largest of their row are exact; others are smaller."""

    def __init__(self, pair: Pair, use_splitk: bool = False) -> None:
        super().__init__(pair, use_splitk)
        self.table_screen = pair.table_screen

    def forward(  # type: ignore[override] # one more input
        self,
        tokens: Tensor,
        positions: Tensor,
        sequences: Tensor,
        tail: Tensor,
        moves: Tensor,
        largest_only: Tensor,
    ) -> tuple[Tensor, ...]:
        return super().forward(tokens, positions, sequences, tail, moves)


class CopyRowsMethod(Method):
    """Copies rows of the target's and the drafter's caches from one sequence to another: input_pos
    int64 [T], `source` int64 [1] and `sequence` int64 [1].

    Returns int64 [1], the position after the last one.
    """

    def forward(self, input_pos: Tensor, source: Tensor, sequence: Tensor) -> Tensor:
        caches = [module for module in self.modules() if isinstance(module, KVCache)]
        chunks = (PromptChunk(input_pos, s, self.use_splitk) for s in (source, sequence))
        copy_rows(caches, *chunks)
        return input_pos[-1:] + 1


class CopyStatesMethod(Method):
    """Copies recurrent states between places of `RecurrentCache`, `source` int64 [1] and `target`
    int64 [1].

    Returns int64 [1], the position of the states.
    """

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        caches = [module for module in self.modules() if isinstance(module, RecurrentCache)]
        return [cache.copy_state(source, target) for cache in caches][-1]


def method_specs(
    pair: Pair, lengths: MethodLengths, use_splitk: bool = False
) -> dict[str, MethodSpec]:
    """Return all methods of an artifact, in the order of their use.

    With `use_splitk` methods attend through the project's operators; a drafter's do if the
    operators have kernels for its caches.
    """
    return {
        PREFILL: prefill_spec(pair, lengths, use_splitk),
        TARGET_VERIFY: verify_spec(pair, lengths, use_splitk),
        **kind_of(pair.draft).methods(pair, lengths, use_splitk),
        **copy_rows_specs(pair, lengths, use_splitk),
        **copy_states_specs(pair, lengths),
        **encode_image_specs(pair, lengths, use_splitk),
    }


def prefill_spec(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> MethodSpec:
    """Return `prefill`, which takes embeddings of images, too, if prompts may contain images."""
    module: Method = PrefillMethod(pair, use_splitk)
    inputs = prompt_inputs(lengths.max_prefill)
    if lengths.image_tokens:
        module = PrefillEmbedsMethod(pair, use_splitk)
        target = pair.target
        inputs |= embeds_inputs(lengths.max_prefill, target.hidden_size, target.dtype)
    return MethodSpec(
        module=module,
        inputs=inputs,
        outputs=target_outputs(LAST_ROW, pair.draft.tap_layers),
        writes=caches_of(pair, "target"),
        min_rows=lengths.min_prefill,
        max_rows=lengths.max_prefill,
        few_rows=False,
        use_splitk=use_splitk,
    )


def verify_spec(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> MethodSpec:
    """Return `target_verify`."""
    batch, draft = lengths.max_batch_size, pair.draft
    lines = draft.lines if batch > 1 and isinstance(draft, SharesRows) else 1
    module, inputs = TargetVerifyMethod(pair, use_splitk), step_inputs(batch) | moves_input(batch)
    if pair.table_screen is not None:
        module = ScreenedVerifyMethod(pair, use_splitk)
        inputs |= {LARGEST_ONLY: (torch.zeros(1, dtype=torch.int64), {})}
    return MethodSpec(
        module=module,
        inputs=inputs,
        outputs=target_outputs(ALL_ROWS, pair.draft.tap_layers),
        writes=caches_of(pair, "target"),
        min_rows=1,
        max_rows=lengths.max_rows,
        few_rows=True,
        lines=lines,
        use_splitk=use_splitk,
    )


def copy_rows_specs(pair: Pair, lengths: MethodLengths, use_splitk: bool) -> dict[str, MethodSpec]:
    """Return `copy_rows` if the caches hold several sequences."""
    if lengths.max_batch_size == 1:
        return {}
    owners = "target", "draft"
    spec = MethodSpec(
        module=CopyRowsMethod(pair, use_splitk),
        inputs=copy_inputs(lengths.max_prefill),
        outputs={"copied": ("int64", (1,))},
        writes=frozenset().union(*(caches_of(pair, owner, (KVCache,)) for owner in owners)),
        min_rows=1,
        max_rows=lengths.max_prefill,
        few_rows=True,
    )
    return {COPY_ROWS: spec}


def copy_states_specs(pair: Pair, lengths: MethodLengths) -> dict[str, MethodSpec]:
    """Return `copy_states` if the target has recurrent states."""
    if not pair.has_states:
        return {}
    buffers = caches_of(pair, "target", (RecurrentCache,))
    spec = MethodSpec(
        module=CopyStatesMethod(pair),
        inputs={
            "source": (torch.zeros(1, dtype=torch.int64), {}),
            "target": (torch.full((1,), lengths.max_batch_size), {}),
        },
        outputs={"copied": ("int64", (1,))},
        writes=frozenset(name for name in buffers if not name.endswith(".terms")),
        min_rows=1,
        max_rows=1,
        few_rows=True,
    )
    return {COPY_STATES: spec}


def trace_methods(
    methods: Mapping[str, MethodSpec], max_batch_size: int, backend: str
) -> dict[str, ExportedProgram]:
    """Trace all methods into graphs for the backend. Raises what `torch.export` raises."""
    programs = {name: trace_method(method, max_batch_size) for name, method in methods.items()}
    if backend == CUDA:
        for name, program in programs.items():
            few_rows = methods[name].few_rows
            if LARGEST_ONLY in methods[name].inputs:
                screen_logits(program)
            read_dense_weights_once(program, multiprocessors(), few_rows=few_rows)
    return programs


def trace_method(spec: MethodSpec, max_batch_size: int) -> ExportedProgram:
    """Trace one method with dynamic dimensions for its rows and, if it takes several, sequences."""
    dims = {ROWS: Dim("rows", min=spec.min_rows, max=spec.max_rows)} if spec.varies else {}
    if max_batch_size > 1:
        dims[BATCH] = Dim("batch", min=1, max=max_batch_size * spec.lines)
    shapes = tuple(
        {at: dims[counts] for at, counts in varies.items() if counts in dims}
        for _, varies in spec.inputs.values()
    )
    examples = tuple(example for example, _ in spec.inputs.values())
    all_rows = max_batch_size * spec.lines * spec.max_rows
    most = all_rows if spec.few_rows else spec.min_rows - 1
    with torch.no_grad(), matvec_max_m_raised(most):
        program = torch.export.export(spec.module, examples, dynamic_shapes=shapes, strict=False)
        return program.run_decompositions(spec.decompositions) if spec.decompositions else program


@contextmanager
def matvec_max_m_raised(rows: int) -> Iterator[None]:
    """Let linears of up to `rows` rows take the path for few rows while tracing.

    The former limit is restored on every exit, exceptions included.
    """
    previous = set_matvec_max_m(rows)
    try:
        yield
    finally:
        set_matvec_max_m(previous)
