"""Pairs that tests load or trace, and what is in their graphs."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from eagle_aot.common.progress import Progress
from eagle_aot.export import ExportSpec, LoadedPair, Pair, load_pair, resolve_checkpoints, run_check
from eagle_aot.export.drafters.eagle3.model import Eagle3Draft
from eagle_aot.export.resolution import choose_attention
from eagle_aot.export.spec import Attention, Backend
from eagle_aot.targets.decoder.kv_cache import CacheSpec


def dummy(target_model: str = "gemma4-tiny", **options: Any) -> ExportSpec:
    """Return the spec of a pair with random weights."""
    return ExportSpec(target_model=target_model, load_format="dummy", **options)


def short_dummy(target_model: str = "gemma4-tiny", **options: Any) -> ExportSpec:
    """Return the spec of a pair with random weights and a context of 128 tokens."""
    return dummy(target_model, max_seq_len=128, max_prefill=72, **options)


def load(
    spec: ExportSpec, dtype: torch.dtype = torch.float32, positions: int = 64, sequences: int = 1
) -> LoadedPair:
    """Load a pair with caches of the same dtype."""
    return load_pair(resolve_checkpoints(spec), dtype, CacheSpec(positions, dtype, sequences))


def head_of(pair: Pair) -> Eagle3Draft:
    """Return the pair's EAGLE-3 head."""
    assert isinstance(pair.draft, Eagle3Draft)
    return pair.draft


def target_of(pair: Pair) -> nn.Module:
    """Return the pair's target as the module that it is."""
    assert isinstance(pair.target, nn.Module)
    return pair.target


def tiny_graphs(
    backend: Backend = "cuda", attention: Attention | None = None
) -> Mapping[str, ExportedProgram]:
    """Trace the shipped geometry's methods once, for tests that only read them."""
    return tiny_check(backend, choose_attention(attention, backend), 1)[0]


@cache
def tiny_check(
    backend: Backend, attention: Attention, sequences: int
) -> tuple[Mapping[str, ExportedProgram], Progress]:
    """Trace the shipped geometry's methods, and record the stages of doing so."""
    progress = Progress()
    spec = short_dummy(backend=backend, attention=attention, max_batch_size=sequences)
    return run_check(spec, progress), progress


def int4_calls(program: ExportedProgram) -> tuple[int, int]:
    """Count the calls of the INT4 operators for few and for many rows."""
    int4 = torch.ops.eagle_aot
    return _calls(program, int4.int4_small_m, int4.int4_large_m)


def expert_calls(program: ExportedProgram) -> tuple[int, int]:
    """Count the calls of the operators of experts for few and for many rows."""
    int4 = torch.ops.eagle_aot
    return _calls(program, int4.int4_experts_few, int4.int4_experts_many)


def _calls(program: ExportedProgram, few: Any, many: Any) -> tuple[int, int]:
    targets = [node.target for node in program.graph.nodes]
    return targets.count(few.default), targets.count(many.default)
