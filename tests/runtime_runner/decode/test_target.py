import dataclasses

import pytest
import torch

from eagle_aot.runtime_runner.decode.target import TargetMethods
from support.runner.logging_executor import CONSTANTS, LoggingExecutor


@pytest.mark.parametrize(("device", "most", "longest"), [
    ("cpu", 512, 128), ("cuda", 512, 512), ("cpu", 96, 96), ("cuda", 96, 96),
])  # fmt: skip
def test_prompt_chunks_are_shorter_on_a_cpu(device: str, most: int, longest: int) -> None:
    executor = LoggingExecutor()
    executor.device = torch.device(device)
    constants = dataclasses.replace(CONSTANTS, max_prefill_chunk=most)
    plan = TargetMethods(executor, constants).plan_prompt(640)
    assert max(map(len, plan)) == longest
    assert sum(map(len, plan)) == 640


def test_rows_are_copied_in_the_fewest_calls() -> None:
    calls = []

    class Copying(LoggingExecutor):
        def run(self, method: str, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            calls.append((method, *(x.tolist() for x in inputs)))
            return ()

    target = TargetMethods(Copying(), CONSTANTS, copies=True)
    target.copy_rows(torch.tensor([2]), torch.tensor([0]), CONSTANTS.max_prefill_chunk + 3)
    most = CONSTANTS.max_prefill_chunk
    assert calls == [
        ("copy_rows", [*range(most)], [2], [0]),
        ("copy_rows", [*range(most, most + 3)], [2], [0]),
    ]
