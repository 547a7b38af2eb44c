"""Every kernel of an artifact, compiled for every kind of GPU; no GPU is needed.

A kernel must fit the GPU's shared memory and spill next to no registers.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from eagle_aot.runtime_runner.sampling.thresholds import EXP2, LOG2E, SCALE_BITS
from eagle_aot.triton_kernels.device import H100, SHARED_MEMORY, capability, fitting
from support.kernels.compiled import (
    empty,
    experts_weight,
    int4_weight,
    launches,
    local_memory,
    prompt_attention,
    rows_attention,
)

pytest.importorskip("triton", reason="triton is not installed")

SPILLED = 64
"""Maximum bytes per thread. Prompts of the delta rule are fastest where two warps share a tile."""

OTHERS = [capability for capability in SHARED_MEMORY if capability != H100]
"""GPUs besides the H100, for which most kernels' own tests compile."""


def int4_few_rows(kernel: ModuleType) -> None:
    kernel.launch(empty(1, 64, 5376), *int4_weight(32), 43008, 1, "gelu_tanh")


def largest_int4_few_rows(kernel: ModuleType) -> None:
    """Launch the kernel with its largest tile."""
    kernel.launch(empty(1, 64, 5376), *int4_weight(128), 43008, 1, "gelu_tanh")


def int4_many_rows(kernel: ModuleType) -> None:
    kernel.launch(empty(1, 512, 5376), *int4_weight(32), 43008, "gelu_tanh")


def dense_few_rows(kernel: ModuleType) -> None:
    kernel.launch(empty(1, 64, 5376), empty(32000, 5376), 1)


def screened_table(kernel: ModuleType) -> None:
    copy = kernel.ScreenCopy(
        empty(32000, 5376, dtype=torch.int8),
        empty(32000, 42),
        *(empty(32000, dtype=torch.float32) for _ in range(2)),
    )
    kernel.launch(empty(1, 8, 5376), empty(32000, 5376), copy, empty(1, dtype=torch.int64))


def wide_rows_attention(kernel: ModuleType) -> None:
    """Launch it for the full layers of Gemma 4 31B."""
    rows_attention(kernel, 32, 4, 512)


def narrow_prompt_attention(kernel: ModuleType) -> None:
    """Launch it for the sliding layers of Gemma 4 31B."""
    prompt_attention(kernel, 32, 16, 256, 1024)


def residual_norm(kernel: ModuleType) -> None:
    weight, parts = empty(5376), empty(6, 1, 8, 5376, dtype=torch.float32)
    kernel.launch(parts, empty(1, 8, 5376), weight, empty(1), weight, 1e-6, 1e-6)


def norm_rope_store(kernel: ModuleType) -> None:
    """Launch it for SmolLM2, which has no norms of heads."""
    angles, slots = empty(1, 8, 1, 64, dtype=torch.float32), empty(8, dtype=torch.int64)
    caches = 2 * (empty(4096, 3, 64).transpose(0, 1),)
    parts, moves = empty(1, 1, 8, 15 * 64), empty(1, 16, dtype=torch.int64)
    kernel.launch(
        parts, (angles, angles), (None, None), caches, slots, (moves, moves), 9, False, 0.0,
        torch.bfloat16,
    )  # fmt: skip


def int8_entries(kernel: ModuleType) -> None:
    """Launch both conversions."""
    kernel.quantize(empty(8, 64, 256))
    kernel.dequantize(empty(8, 64, 272, dtype=torch.int8), torch.bfloat16)


def copy_rows(kernel: ModuleType) -> None:
    caches = 2 * (empty(4096, 4, 512).transpose(0, 1),)
    kernel.launch(*caches, *(2 * (empty(9, dtype=torch.int64),)))


def experts_few_rows(kernel: ModuleType, group: int = 32) -> None:
    """Launch the kernel for the gated products of Gemma 4 26B-A4B, with its largest tile."""
    codes, scales = experts_weight(11, 22, group)
    ids = empty(64, 8, dtype=torch.int64)
    kernel.launch(empty(64, 2816), ids, None, codes, scales, None, 1408, "gelu_tanh")


def experts_of_one_row(kernel: ModuleType) -> None:
    """Launch the kernel for the second products, whose columns are no multiple of 128."""
    codes, scales = experts_weight(22, 6, 32)
    factors, ids = empty(8, 8, dtype=torch.float32), empty(8, 8, dtype=torch.int64)
    kernel.launch(empty(64, 704), ids, factors, codes, scales, scales, 2816, "")


def experts_many_rows(kernel: ModuleType) -> None:
    codes, scales = experts_weight(16, 6, 128)
    factors, ids = empty(512, 8, dtype=torch.float32), empty(512, 8, dtype=torch.int64)
    order, starts = empty(4096, dtype=torch.int32), empty(129, dtype=torch.int32)
    kernel.launch(empty(4096, 768), ids, order, starts, factors, codes, scales, scales, 2048, "")


def experts_order(kernel: ModuleType) -> None:
    kernel.launch(empty(512, 8, dtype=torch.int64), 128)


def delta_rule_step(kernel: ModuleType) -> None:
    """Launch it for Qwen3.5 27B, 64 rows of four texts."""
    numbers, flags = partial(empty, dtype=torch.int64), partial(empty, dtype=torch.bool)
    state, rows = empty(4, 48, 128, 128, dtype=torch.float32), partial(empty, dtype=torch.float32)
    kernel.launch_step(
        *(state, numbers(4), numbers(4), rows(80, 8288), numbers(64), flags(4, 16), flags()),
        *(rows(64, 8288), rows(64, 2048), numbers(1024), flags(64, 16)),
    )


def delta_rule_prompt(kernel: ModuleType) -> None:
    numbers, rows = partial(empty, 1, dtype=torch.int64), partial(empty, 512, dtype=torch.float32)
    state = empty(4, 48, 128, 128, dtype=torch.float32)
    kernel.launch_prompt(state, numbers(), numbers(), rows(8288), rows(2048))


def delta_net_inputs(kernel: ModuleType) -> None:
    """Launch it for Qwen3.5 27B, 64 rows of four texts."""
    numbers, rows = partial(empty, dtype=torch.int64), partial(empty, dtype=torch.float32)
    taps = numbers(256), empty(64, 4, 1, dtype=torch.bool)
    kernel.launch_inputs(
        *(rows(2, 1, 64, 16480), (empty(10240, 1, 4), empty(48), empty(48))),
        *((rows(80, 10240), rows(80, 8288)), numbers(64), taps, 2 * (numbers(4, 16),), 128),
    )


def delta_net_output(kernel: ModuleType) -> None:
    read, parts = empty(64, 48, 128, dtype=torch.float32), empty(1, 1, 64, 16480)
    kernel.launch_output(read, parts, empty(128), 1e-6)


def choice_of_experts(kernel: ModuleType) -> None:
    kernel.launch(empty(8, 128), empty(128), 8, True)


ROWS, VOCAB = 32, 262_144
NUMBERS = partial(empty, ROWS, dtype=torch.int64)
LOGITS = partial(empty, ROWS, VOCAB, dtype=torch.float32)


def penalties_of_logits(kernel: ModuleType) -> None:
    """Launch it for the vocabulary of Gemma 4 31B and rows that follow four drafts."""
    flags, tokens = empty(ROWS, dtype=torch.bool), empty(ROWS, VOCAB, dtype=torch.bool)
    kernel.launch(
        *(LOGITS(), NUMBERS(), NUMBERS(), empty(ROWS, 4, dtype=torch.int64)),
        empty(ROWS, VOCAB // 8, dtype=torch.uint8),
        (flags, LOGITS()),
        (flags, empty(ROWS, 3, dtype=torch.float32)),
        (empty(ROWS, VOCAB, dtype=torch.int32), tokens),
        (NUMBERS(), tokens),
    )


def thresholds_of_logits(kernel: ModuleType) -> None:
    scale = empty(ROWS, dtype=torch.float32)
    extremes = empty(ROWS, 2, 64, dtype=torch.float32)
    bounds = NUMBERS(), empty(ROWS, dtype=torch.float64), scale
    kernel.launch(LOGITS(), extremes, scale, NUMBERS(), *bounds, SCALE_BITS, LOG2E, EXP2)


def topk_of_logits(kernel: ModuleType) -> None:
    kernel.launch(LOGITS(), 16)


def greedy_choice(kernel: ModuleType) -> None:
    kernel.launch_argmax(LOGITS(dtype=torch.bfloat16))


def ngram_lookup(kernel: ModuleType) -> None:
    integers = empty(8, dtype=torch.int64)
    kernel.launch(empty(8, 32_788, dtype=torch.int64), integers, integers, 4, 3)


def chain_rows(kernel: ModuleType) -> None:
    """Launch all kernels for chains of 63 drafts; rows also without limits."""
    of_rows, integers = empty(8, 64, dtype=torch.int64), empty(8, dtype=torch.int64)
    tail = empty(8, 16, dtype=torch.int64)
    kernel.launch_rows(of_rows, of_rows[:, 1:], integers, integers, 16)
    kernel.launch_rows(of_rows, of_rows, integers, None, 16)
    kernel.launch_accept(of_rows, of_rows, of_rows)
    kernel.launch_advance(of_rows, integers, integers, of_rows[:, 0].contiguous(), integers, tail)


Launch = Callable[[ModuleType], None]

KERNELS: dict[Launch, str] = {
    int4_few_rows: "int4_gemm.small_m",
    int4_many_rows: "int4_gemm.large_m",
    dense_few_rows: "dense_gemm.kernel",
    screened_table: "screened_table.kernel",
    rows_attention: "sdpa_splitk.kernel",
    prompt_attention: "sdpa_prompt.kernel",
    norm_rope_store: "norm_rope_store.kernel",
    residual_norm: "residual_norm.kernel",
    experts_few_rows: "int4_experts.few_rows",
    experts_of_one_row: "int4_experts.few_rows",
    experts_many_rows: "int4_experts.many_rows",
    experts_order: "int4_experts.order",
    choice_of_experts: "choose_experts.kernel",
    delta_net_inputs: "delta_net.kernel",
    delta_net_output: "delta_net.kernel",
    delta_rule_step: "delta_rule.kernel",
    delta_rule_prompt: "delta_rule.blocks",
    copy_rows: "copy_rows.kernel",
    int8_entries: "kv_int8.kernel",
    penalties_of_logits: "process_logits.penalise",
    thresholds_of_logits: "process_logits.cut",
    topk_of_logits: "topk_logprobs.kernel",
    greedy_choice: "gumbel_argmax.kernel",
    ngram_lookup: "ngram_lookup",
    chain_rows: "chain_rows",
}
OF_TOKENS = (
    *(penalties_of_logits, thresholds_of_logits, topk_of_logits, greedy_choice, ngram_lookup),
    chain_rows,
)
NARROWEST: dict[Launch, str] = {
    largest_int4_few_rows: "int4_gemm.small_m",
    wide_rows_attention: "sdpa_splitk.kernel",
    narrow_prompt_attention: "sdpa_prompt.kernel",
}
"""The launches that take longest to compile, for the GPU with the least of everything."""

TWINS = (8, 6), (10, 0)
"""GPUs with the shared memory of another one, and its instructions but for few."""

CASES: list[Any] = [
    pytest.param(launch, name, gpu, marks=pytest.mark.slow if gpu in TWINS else ())
    for launch, name in KERNELS.items()
    if launch not in OF_TOKENS
    for gpu in OTHERS
]
CASES += [
    (launch, name, H100)
    for launch, name in KERNELS.items()
    if any(part in name for part in ("experts", "delta", "screened"))
]
CASES += [(launch, NARROWEST[launch], (8, 9)) for launch in NARROWEST]
# These use no tensor cores and little shared memory, and take seconds to compile.
CASES += [(launch, KERNELS[launch], gpu) for launch in OF_TOKENS for gpu in ((8, 9), H100)]


@pytest.mark.parametrize(
    ("launch", "name", "generation"), CASES, ids=lambda case: getattr(case, "__name__", str(case))
)
def test_kernels_fit_the_gpu_without_spilling(
    launch: Launch,
    name: str,
    generation: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    kernel = import_module(f"eagle_aot.triton_kernels.{name}")
    calls = launches(monkeypatch, kernel, lambda: launch(kernel), generation)
    assert calls
    for call in calls:
        program = call.compiled(generation)
        assert program.metadata.shared <= SHARED_MEMORY[generation] << 10
        most = 384 if launch is delta_rule_prompt else SPILLED
        assert local_memory(program.asm["cubin"], tmp_path) <= most


@pytest.mark.parametrize(
    ("gpu", "sizes"), [((9, 0), "large"), ((8, 0), "small"), ((12, 0), "small"), ((7, 5), "small")]
)
def test_fitting_returns_the_largest_sizes_that_fit(
    gpu: tuple[int, int], sizes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle_aot.triton_kernels.device.capability", lambda: gpu)
    assert fitting({227: "large", 99: "small"}) == sizes


def test_the_capability_without_a_gpu_is_an_h100s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert capability() == H100
