"""Peak memory by part."""

import torch
from logging_executor import LoggingExecutor

from eagle_aot.runtime_runner.bench.memory import forget_peak, peak_memory, with_workspace


def test_the_workspace_is_what_the_parts_leave() -> None:
    held = {"target weights": 700, "draft cache": 50}
    assert with_workspace(held, 1000) == held | {"workspace": 250}


def test_on_the_cpu_there_is_one_figure() -> None:
    forget_peak(torch.device("cpu"))
    (name, size), *others = peak_memory(LoggingExecutor()).items()
    assert (name, others) == ("process", [])
    assert size > 10e6
