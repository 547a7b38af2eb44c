"""Requests over a real program whose texts share too little memory, as each alone."""

import random
from pathlib import Path

import pytest

from eagle_aot.lab.checks.engine import check_engine
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.engine import Engine
from eagle_aot.runtime_runner.program.cache_pages import PAGE, BufferShape, CachePages
from support.runner.counted_memory import CountedMemory

pytestmark = pytest.mark.artifact
REQUESTS = 24


def test_texts_that_share_memory_are_as_alone(
    batch_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chains, trees, prefixes, scores and cancellations, where one longest text fits."""
    with load_artifact(batch_artifact) as runner:
        constants = runner.constants
        shape = BufferShape(2, constants.max_batch_size, constants.flat_slots, PAGE // 24)
        memory = CountedMemory(1, 0)
        margin = constants.flat_slots - constants.max_seq_len
        pages = CachePages([shape], memory, constants.flat_slots, margin, step=8)
        memory.capacity = pages.most_pages(constants.max_seq_len)
        runner.engine = Engine(runner.engine.schedule, pages=pages)
        draw = random.Random(4)
        prompts = [[draw.randrange(constants.vocab_size) for _ in range(30)] for _ in range(8)]
        assert check_engine(runner, prompts, [4], REQUESTS, 40, seed=3) == 0
        assert runner.engine.launches.preemptions > 0
    assert f"{REQUESTS} requests in" in capsys.readouterr().out
