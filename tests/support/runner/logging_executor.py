"""An executor that logs its calls."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eagle_aot.artifact import PREFILL, Constants
from eagle_aot.runtime_runner.program.cache_pages import CachePages
from eagle_aot.runtime_runner.program.executor import Part

VOCAB, HIDDEN, TAIL = 50, 4, 16
CONSTANTS = Constants(
    max_seq_len=256, vocab_size=VOCAB, n_layers=1, min_prefill_chunk=65, max_prefill_chunk=96,
    sliding_window=32, chain_len=3, max_rows=64, max_step_rows=256, max_batch_size=1,
    tail=16, flat_slots=352, draft_vocab_size=VOCAB, hidden_size=HIDDEN, eos_ids=(),
)  # fmt: skip


class LoggingExecutor:
    """Returns random logits and features, and keeps the arguments of its calls."""

    name = "logging"
    records = False
    pages: CachePages | None = None
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int], list[int]]] = []
        self.repeated: list[Callable[[], Any]] = []

    def constants(self) -> dict[str, list[int]]:
        return {}

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        tokens, positions = inputs[:2]
        assert len(inputs) == (3 if method == PREFILL else 5)
        self.calls.append((method, tokens[0].tolist(), positions.flatten().tolist()))
        rows = 1 if method == PREFILL else tokens.shape[1]
        return torch.randn(len(tokens), rows, VOCAB), torch.randn(*tokens.shape, HIDDEN)

    def repeat(self, step: Callable[[], Part]) -> Callable[[], Part]:
        self.repeated.append(step)
        return step
