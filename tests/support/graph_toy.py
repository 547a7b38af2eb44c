"""A toy pair whose traced methods keep the graph contract, until a test breaks them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional as F

from eagle_aot.artifact import DRAFT_DECODE, PREFILL, TARGET_VERIFY
from eagle_aot.export.graph_checks import check_graphs
from eagle_aot.export.method_spec import (
    ALL_ROWS,
    LAST_ROW,
    MethodSpec,
    features_input,
    moves_input,
    prompt_inputs,
    step_inputs,
)
from eagle_aot.export.methods import trace_method
from eagle_aot.targets.int4 import Int4Linear, PackedInt4Linear
from eagle_aot.targets.int4.weight import random_int4

RANGES = {PREFILL: (9, 16), TARGET_VERIFY: (1, 8), DRAFT_DECODE: (1, 16)}
VOCAB, WIDTH = 48, 4
INT4_WIDTH = 32
Programs = dict[str, ExportedProgram]
Body = Callable[["Toy", Tensor, Tensor], Tensor]
Outputs = tuple[Tensor, ...]


class ToyCache(nn.Module):
    k: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(32, WIDTH))


class ToyModel(nn.Module):
    """A cache, a buffer that is none, a dense weight and INT4 ones; used or not."""

    scratch: Tensor
    other: "ToyModel"

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.kv_cache = ToyCache()
        self.register_buffer("scratch", torch.zeros(32, WIDTH, dtype=dtype))
        self.dense = nn.Linear(WIDTH, 6, dtype=dtype)
        weight = random_int4(6, INT4_WIDTH, 32, torch.bfloat16)
        self.int4 = PackedInt4Linear(weight, multiprocessors=1)
        self.unpacked = Int4Linear(weight, torch.bfloat16)

    def int4_rows(self, x: Tensor) -> Tensor:
        """`x` [rows, WIDTH] -> bfloat16 [rows, INT4_WIDTH], what INT4 weights take."""
        return torch.cat([x] * (INT4_WIDTH // WIDTH), dim=-1).to(torch.bfloat16)


class Toy(nn.Module):
    """Two models with a cache each; `body` decides what is read and written.

    It gets all rows of all sequences, x [rows, WIDTH] and input_pos [rows], and returns
    [rows, WIDTH], which are the logits; x is the features.
    """

    table: Tensor

    def __init__(self, body: Body, dtype: torch.dtype = torch.float32, caches: int = 1) -> None:
        super().__init__()
        self.target, self.draft = ToyModel(dtype), ToyModel(dtype)
        if caches == 2:
            self.target.other = ToyModel(dtype)
        self.register_buffer("table", torch.ones(VOCAB, WIDTH))
        self.body = body

    def outputs(self, tokens: Tensor, positions: Tensor) -> Outputs:
        """Logits and features [B, T, WIDTH] of tokens and positions [B, T]."""
        x = F.embedding(tokens.flatten(), self.table)
        y = self.body(self, x, positions.flatten())
        return y.view(*tokens.shape, WIDTH), x.view(*tokens.shape, WIDTH)


class ToyPrefill(Toy):
    def forward(self, tokens: Tensor, input_pos: Tensor, sequence: Tensor) -> Outputs:
        logits, features = self.outputs(tokens, input_pos)
        return logits[:, -1:], features


class ToyVerify(Toy):
    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, moves: Tensor
    ) -> Outputs:
        return self.outputs(tokens, positions)


class ToyDraft(Toy):
    def forward(
        self, tokens: Tensor, positions: Tensor, sequences: Tensor, tail: Tensor, features: Tensor
    ) -> Outputs:
        logits, embedded = self.outputs(tokens, positions)
        return logits, features + embedded


KINDS = {PREFILL: ToyPrefill, TARGET_VERIFY: ToyVerify, DRAFT_DECODE: ToyDraft}


def write_target(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return x + toy.target.kv_cache.k.index_copy_(0, input_pos, x).sum()


def write_draft(toy: Toy, x: Tensor, input_pos: Tensor) -> Tensor:
    return x + toy.draft.kv_cache.k.index_copy_(0, input_pos, x).sum()


def trace(
    name: str,
    body: Body,
    *,
    bounds: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    caches: int = 1,
    kind: Callable[[Body, torch.dtype, int], Toy] | None = None,
    batch: int = 1,
) -> ExportedProgram:
    """A toy method over `body`, traced as those of a pair are.

    It has the inputs and the ranges of the method `name`, unless others are given.
    """
    method = spec(name, batch, caches)
    low, high = bounds or RANGES[name]
    inputs = prompt_inputs(high) if name == PREFILL else method.inputs
    module = (kind or KINDS[name])(body, dtype, caches)
    traced = replace(method, module=module, inputs=inputs, min_rows=low, max_rows=high)
    return trace_method(traced, batch)


def spec(name: str, batch: int = 1, caches: int = 1) -> MethodSpec:
    """What a toy method is to be."""
    step = step_inputs(batch)
    inputs = {
        PREFILL: prompt_inputs(RANGES[PREFILL][1]),
        TARGET_VERIFY: step | moves_input(batch),
        DRAFT_DECODE: step | features_input(batch, WIDTH, torch.float32),
    }
    owners = {DRAFT_DECODE: ["draft"]}.get(name, ["target", "target.other"][:caches])
    low, high = RANGES[name]
    return MethodSpec(
        module=KINDS[name](writer(name)),
        inputs=inputs[name],
        outputs=LAST_ROW if name == PREFILL else ALL_ROWS,
        writes=frozenset(f"{owner}.kv_cache.k" for owner in owners),
        min_rows=low,
        max_rows=high,
        few_rows=name != PREFILL,
    )


def good_programs(batch: int = 1) -> Programs:
    """The three methods, each writing its cache and nothing else."""
    return {name: trace(name, writer(name), batch=batch) for name in KINDS}


def writer(name: str) -> Body:
    """What a method must do at least."""
    return write_draft if name == DRAFT_DECODE else write_target


def check(programs: Programs, batch: int = 1, **other: MethodSpec) -> None:
    """The contract of a toy, but for what `other` methods are to be."""
    check_graphs(programs, {name: spec(name, batch) for name in KINDS} | other, batch)


def check_with(good: Programs, **broken: ExportedProgram) -> None:
    """The contract of `good` with some methods exchanged."""
    check(good | broken)
