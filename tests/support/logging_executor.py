"""An executor that says what it was asked for."""

import torch
from torch import Tensor

from eagle_aot.artifact import DRAFT_DECODE, Constants
from eagle_aot.runtime_runner.executors import Call

VOCAB, HIDDEN, WINDOW = 50, 4, 8
CONSTANTS = Constants(
    max_seq_len=256, vocab_size=VOCAB, n_layers=1, min_prefill_chunk=9, max_prefill_chunk=64,
    sliding_window=32, chain_len=3, max_verify_window=WINDOW, draft_vocab_size=VOCAB,
    hidden_size=HIDDEN, eos_ids=(),
)  # fmt: skip


class LoggingExecutor:
    """Proposes random tokens, and keeps what it was called with."""

    name = "logging"
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int], list[int]]] = []
        self.repeated: list[Call] = []

    def constants(self) -> dict[str, list[int]]:
        return {}

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        tokens, input_pos = inputs[0], inputs[-1]
        assert tokens.shape == (1, len(input_pos))
        assert (len(inputs) == 3) == (method == DRAFT_DECODE)
        self.calls.append((method, tokens[0].tolist(), input_pos.tolist()))
        return torch.randint(VOCAB, tokens.shape), torch.randn(*tokens.shape, HIDDEN)

    def repeat(self, step: Call) -> Call:
        self.repeated.append(step)
        return step
