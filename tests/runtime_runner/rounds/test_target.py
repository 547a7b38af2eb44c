import dataclasses

import pytest
import torch

from eagle_aot.runtime_runner.rounds.target import TargetMethods
from support.runner.logging_executor import CONSTANTS, LoggingExecutor


@pytest.mark.parametrize(("device", "most", "longest"), [
    ("cpu", 512, 128), ("cuda", 512, 512), ("cpu", 96, 96), ("cuda", 96, 96),
])  # fmt: skip
def test_a_cpu_takes_shorter_chunks(device: str, most: int, longest: int) -> None:
    executor = LoggingExecutor()
    executor.device = torch.device(device)
    constants = dataclasses.replace(CONSTANTS, max_prefill_chunk=most)
    plan = TargetMethods(executor, constants).plan_prompt(640)
    assert max(map(len, plan)) == longest
    assert sum(map(len, plan)) == 640
