"""Peak memory by part."""

from eagle_aot.runtime_runner.bench.memory import all_parts, peak_memory
from support.logging_executor import LoggingExecutor


def test_parts_add_up_to_what_is_in_use() -> None:
    held = {"target weights": 700, "draft cache": 50}
    parts = all_parts(held, 1000, 1100, 40, 1145)
    assert parts.items() > held.items()
    assert list(parts.values())[len(held) :] == [250, 100, 40, 5]
    assert sum(parts.values()) == 1145


def test_on_the_cpu_there_is_one_figure() -> None:
    (name, size), *others = peak_memory(LoggingExecutor(), 0, 0).items()
    assert (name, others) == ("process", [])
    assert size > 10e6
