"""What the engine's checker runs to know what a sequence should hold."""

from types import SimpleNamespace
from typing import Any, cast

import torch

from eagle_aot.lab.invariants import _prefill
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.engine import Engine


def test_a_prompt_between_two_of_its_chunks_runs_none_of_the_later_ones() -> None:
    """Those would overwrite rows of a ring that the first ones left."""
    plan = [Chunk(0, 96, False), Chunk(96, 192, False), Chunk(192, 256, False)]
    run: list[tuple[int, int]] = []

    def run_prompt(tokens: Any, positions: Any, sequence: Any, chunk: Chunk) -> None:
        run.append((chunk.start, chunk.stop))

    target = SimpleNamespace(plan_prompt=lambda _: plan, run_prompt=run_prompt, tail_length=16)
    batch = SimpleNamespace(bonus=torch.zeros(1))
    engine = SimpleNamespace(schedule=SimpleNamespace(target=target, batch=batch))
    _prefill(cast(Engine, engine), range(96), 256, 0)
    _prefill(cast(Engine, engine), range(260), 256, 0)
    assert run == [(0, 96), (0, 96), (96, 192), (192, 256), (256, 260)]
