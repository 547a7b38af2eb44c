"""How many operations a round runs besides its forwards: each takes about 2 us of a GPU."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from eagle_aot.runtime_runner.decode.acceptance import committed
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.drafters.gemma4_assistant import AssistantDrafter
from eagle_aot.runtime_runner.drafters.ngram import NgramDrafter

SIZES: Any = SimpleNamespace(max_seq_len=64, tail=16, max_batch_size=1, max_rows=64)
CPU = torch.device("cpu")


class Forwards:
    """A target and an executor whose forwards count as no operations."""

    tail_length, suppressed_ids = SIZES.tail, None

    def verify(self, step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        return Forward(*self.run("", step.tokens))

    def run(self, method: str, tokens: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        with _disable_current_modes():
            return torch.randn(*tokens.shape, 32), torch.randn(*tokens.shape, 8)


class Operations(TorchDispatchMode):
    """Counts what is no view."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


DRAFTERS: dict[str, tuple[Any, int]] = {
    "plain": (None, 15),
    "ngram": (NgramDrafter(SIZES, CPU), 42),
    "eagle3": (Eagle3Drafter(cast(Any, Forwards()), SIZES, torch.arange(32)), 63),
    "gemma4_assistant": (AssistantDrafter(cast(Any, Forwards()), SIZES, torch.arange(32)), 72),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_chain_of_four_runs_few_operations(name: str) -> None:
    drafter, expected = DRAFTERS[name]
    batch = BatchState([0], SIZES.tail, CPU)
    batch.place(torch.tensor([[5]]), 20)
    round_ = Round(cast(Any, Forwards()), drafter, 4, batch)
    if drafter:
        drafter.observe(
            committed(torch.tensor([[5, 6]]), torch.arange(2), batch.sequences),
            torch.zeros(1, 2, 8),
        )
    round_.run()
    with Operations() as operations:
        round_.run()
    assert operations.count <= expected
