"""What a step says about the logits that are read of it."""

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.target import TargetMethods
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.logging_executor import CONSTANTS, LoggingExecutor


class Flagged(LoggingExecutor):
    """Keeps the inputs of a step that follow its moves."""

    def __init__(self) -> None:
        super().__init__()
        self.flags: list[list[int]] = []

    def run(self, method: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.flags.append([int(flag) for flag in inputs[5:]])
        return super().run(method, *inputs[:5])


SAMPLED = SamplingParams(temperature=1.0, seed=1)


@pytest.mark.parametrize(("sampling", "flag"), [
    (GREEDY, 1), (SAMPLED, 0), (SamplingParams(logprobs=2), 0),
    (SamplingParams(frequency_penalty=1.0), 0), (SamplingParams(logit_bias={3: 1.0}), 0),
])  # fmt: skip
def test_greedy_rounds_alone_read_nothing_but_the_largest_logits(
    sampling: SamplingParams, flag: int
) -> None:
    executor = Flagged()
    target = TargetMethods(executor, CONSTANTS, screens_table=True)
    sampler = Sampler(2, "cpu", 64, CONSTANTS.vocab_size)
    batch = BatchState([0, 1], CONSTANTS.tail, "cpu", sampler)
    batch.place(torch.tensor([[9]]), 0)
    sampler.begin(0, GREEDY)
    sampler.begin(1, sampling)
    Round(target, None, 0, batch).step()
    sampler.end(1)
    Round(target, None, 0, batch).step()
    assert executor.flags == [[flag], [1]]


def test_other_steps_read_all_logits_and_other_programs_have_no_flag() -> None:
    tokens, positions, first = torch.tensor([[9, 8]]), torch.arange(2), torch.zeros(1).long()
    for screens, flags in ((True, [0]), (False, [])):
        executor = Flagged()
        target = TargetMethods(executor, CONSTANTS, screens_table=screens)
        target.run_prompt(tokens, positions, first, Chunk(0, 2, few_rows=True))
        assert executor.flags == [flags]
