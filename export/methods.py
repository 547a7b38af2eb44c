"""What is traced: an artifact's methods, with their example inputs and ranges of length."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from eagle_aot.artifact import PREFILL, TARGET_VERIFY
from eagle_aot.export.drafters.eagle3.methods import draft_methods
from eagle_aot.export.drafters.protocol import BATCH, ROWS, MethodSpec
from eagle_aot.export.lengths import MethodLengths
from eagle_aot.export.pair import Pair
from eagle_aot.targets.step import (
    TAIL,
    PromptChunk,
    Step,
    chain_tail,
    one_row_of_rows,
    rows_of_sequences,
)
from eagle_aot.triton_kernels.int4_gemm import set_matvec_max_m

TYPICAL_ROWS = 8
"""Of a step's sequence: what methods are traced and tuned at."""

# One module per method, all over the same children: weights and caches keep one name (`target.*`,
# `draft.*`) in every method and can be shared between them. They only compute: choosing tokens,
# accepting drafts, stopping and budgets belong to the runner.


class Prefill(Pair):
    """A prompt's chunk: tokens int64 [1, T], input_pos int64 [T], sequence int64 [1].

    Returns logits float32 [1, 1, V] of the last row and the fused feature of every row [1, T, H].
    """

    def forward(self, tokens: Tensor, input_pos: Tensor, sequence: Tensor) -> tuple[Tensor, Tensor]:
        chunk = PromptChunk(input_pos, sequence)
        logits, taps = self.target.run(tokens, chunk, last_logits_only=True)
        return logits, self.draft.fuse(taps)


class TargetVerify(Pair):
    """Decided tokens and their drafts: tokens int64 [B, T] of a `Step`.

    Returns logits float32 [B, T, V] and fused features [B, T, H]. T = 1 is plain decoding.
    """

    splits_keys = False

    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, moves: Tensor
    ) -> tuple[Tensor, Tensor]:
        step = Step(positions, sequences, tail, moves, self.splits_keys)
        logits, taps = self.target.run(tokens, step)
        features = self.draft.fuse(one_row_of_rows(taps))
        return logits, rows_of_sequences(features, tokens)


def method_specs(
    pair: Pair, lengths: MethodLengths, splits_keys: Collection[str] = ()
) -> dict[str, MethodSpec]:
    """All methods of an artifact, in the order of their use.

    Those named in `splits_keys` attend through the operator for few rows.
    """
    prefill = MethodSpec(
        module=Prefill(pair.target, pair.draft),
        inputs=prompt_inputs(lengths.max_prefill),
        min_rows=lengths.min_prefill,
        max_rows=lengths.max_prefill,
        few_rows=False,
    )
    verify = TargetVerify(pair.target, pair.draft)
    verify.splits_keys = TARGET_VERIFY in splits_keys
    rounds = MethodSpec(
        module=verify,
        inputs=(*step_inputs(lengths.max_batch_size), moves_input(lengths.max_batch_size)),
        min_rows=1,
        max_rows=lengths.max_rows,
        few_rows=True,
    )
    drafting = draft_methods(pair, lengths, splits_keys, step_inputs(lengths.max_batch_size))
    return {PREFILL: prefill, TARGET_VERIFY: rounds, **drafting}


def export_methods(
    pair: Pair, lengths: MethodLengths, splits_keys: Collection[str] = ()
) -> dict[str, ExportedProgram]:
    """Trace every method. Raises what `torch.export` raises."""
    specs = method_specs(pair, lengths, splits_keys)
    return {name: trace_method(spec, lengths.max_batch_size) for name, spec in specs.items()}


def trace_method(spec: MethodSpec, max_batch_size: int) -> ExportedProgram:
    """One method, with its rows, and its sequences if it takes several, as dynamic dimensions."""
    dims = {ROWS: Dim("rows", min=spec.min_rows, max=spec.max_rows)}
    if max_batch_size > 1:
        dims[BATCH] = Dim("batch", min=1, max=max_batch_size)
    shapes = tuple(
        {at: dims[counts] for at, counts in varying.items() if counts in dims}
        for _, varying in spec.inputs
    )
    examples = tuple(example for example, _ in spec.inputs)
    most = max_batch_size * spec.max_rows if spec.few_rows else spec.min_rows - 1
    with torch.no_grad(), matvec_max_m_raised(most):
        return torch.export.export(spec.module, examples, dynamic_shapes=shapes, strict=False)


def prompt_inputs(rows: int) -> tuple[tuple[Tensor, dict[int, str]], ...]:
    """tokens, input_pos and sequence of a chunk of so many rows."""
    tokens = torch.zeros(1, rows, dtype=torch.int64)
    sequence = torch.zeros(1, dtype=torch.int64)
    return (tokens, {1: ROWS}), (torch.arange(rows), {0: ROWS}), (sequence, {})


def step_inputs(batch: int) -> tuple[tuple[Tensor, dict[int, str]], ...]:
    """tokens, positions, sequences and tail of a step of so many sequences."""
    positions = torch.arange(TYPICAL_ROWS).expand(batch, -1).contiguous()
    by_row = {0: BATCH, 1: ROWS}
    return (
        (torch.zeros_like(positions), by_row),
        (positions, by_row),
        (torch.arange(batch), {0: BATCH}),
        (chain_tail(positions), by_row),
    )


def moves_input(batch: int) -> tuple[Tensor, dict[int, str]]:
    """moves of a step of so many sequences."""
    return torch.full((batch, TAIL), -1), {0: BATCH}


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
