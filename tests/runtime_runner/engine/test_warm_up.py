"""Rounds that are made in advance: which, and what is reported; they change no text."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.engine import Engine
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.warm_up import WarmUp, warm_up
from eagle_aot.runtime_runner.program.executor import Part
from eagle_aot.runtime_runner.runner import Runner
from support.runner.engines import Requests, request_of, rounds_over, schedule_over
from support.runner.logging_executor import CONSTANTS, LoggingExecutor
from support.runner.toy import SeeingDrafter, ToyTarget

SEED = 5


class Recorder:
    """Counts recordings; there is memory for `most`."""

    def __init__(self, most: int = 100) -> None:
        self.recorded, self.most = 0, most

    def __call__(self, step: Callable[[], Part]) -> Callable[[], Part]:
        if self.recorded == self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        self.recorded += 1
        step()
        return lambda: step()


def rounds_of(sequences: int, recorder: Recorder | None, max_step_rows: int = 64) -> Rounds:
    target = ToyTarget(SEED, 16, 9, sequences=sequences)
    drafter = SeeingDrafter(target, [True])
    return rounds_over(target, drafter, recorder, max_step_rows=max_step_rows)


def chains_of(rounds: Rounds, texts: int, lengths: list[int]) -> set[tuple[int, int]]:
    """Return the batch sizes and lengths of the rounds of so many texts with these chains."""
    shapes = rounds.shapes(texts, map(Shape.chain, lengths))
    assert all(shape.is_chain for _, shape in shapes)
    return {(batch_size, shape.depth) for batch_size, shape in shapes}


def test_buckets_are_those_that_rounds_may_need() -> None:
    recorded, played = rounds_of(8, Recorder()), rounds_of(8, None)
    assert chains_of(recorded, 8, [4]) == {(1, 4), (2, 4), (4, 4), (8, 4)}
    assert chains_of(recorded, 3, [4, 0]) == {(1, 0), (2, 0), (4, 0), (1, 4), (2, 4), (4, 4)}
    assert chains_of(recorded, 8, [15, 7]) == {
        *((batch_size, k) for batch_size in (1, 2, 4) for k in (7, 15)),
        (8, 7),  # rows for no more
    }
    assert chains_of(played, 3, [4]) == {(1, 4), (2, 4), (3, 4)}
    assert chains_of(rounds_of(5, Recorder()), 5, [1]) == {(1, 1), (2, 1), (4, 1), (5, 1)}


def test_a_wide_step_has_rows_for_more_texts_but_no_larger_tree() -> None:
    rounds, largest = rounds_of(32, None, 256), Shape(7, 8, 63)
    depths = {texts: rounds.fitting(texts, Shape.chain(15)).depth for texts in (8, 16, 17, 32)}
    assert depths == {8: 15, 16: 15, 17: 14, 32: 7}
    assert rounds.fitting(4, largest) == largest == rounds.fitting(1, largest)
    assert rounds.fitting(5, largest).nodes == 256 // 5 - 1


@pytest.mark.parametrize("sequences", [1, 4, 5])
@pytest.mark.parametrize("shape", [Shape.chain(4), Shape(3, 3, 9)], ids=str)
def test_nothing_is_recorded_after_a_warm_up(sequences: int, shape: Shape) -> None:
    """Whatever is accepted: a recording serves every number of drafts, at every position."""
    recorder = Recorder()
    rounds = rounds_of(sequences, recorder)
    done = warm_up(rounds, sequences, [shape])
    buckets = len(rounds.shapes(sequences, [shape]))
    assert done.rounds == done.recorded == recorder.recorded == buckets
    requests = Requests(Engine(schedule_over(rounds)))
    for i in range(2 * sequences):
        requests.add(request_of([i], 30, shape.depth, tree=shape))
    requests.finish()
    assert recorder.recorded == done.recorded


def test_a_warm_up_changes_no_state() -> None:
    rounds = rounds_of(3, None)
    target, running = rounds.target, rounds.batch
    assert isinstance(target, ToyTarget)
    before = copy.deepcopy((target.slots, running.tensors()))
    shapes = Shape.chain(0), Shape.chain(2), Shape(2, 2, 5)
    done = warm_up(rounds, 3, shapes, observed=True)
    assert (done.rounds, done.recorded, done.bytes) == (9, 0, None)
    assert target.forwards == 9 and target.slots == before[0]
    for name, tensor in running.tensors().items():
        assert torch.equal(tensor, before[1][name]), name


def test_memory_that_runs_out_is_reported_with_the_round() -> None:
    with pytest.raises(UnsupportedError) as caught:
        warm_up(rounds_of(4, Recorder(most=0)), 4, [Shape.chain(7)])
    line = str(caught.value)
    assert line.startswith(
        "warm-up: a round of 4 sequences with 7 drafts: out of memory on the GPU"
    )
    assert "--max-batch-size" in line


def test_a_warm_up_is_reported_in_one_line() -> None:
    line = str(WarmUp(rounds=4, recorded=4, seconds=2.34, bytes=150_000_000))
    assert line == "warm-up: 4 rounds in 2.3 s, 4 of them recorded, 0.15 GB of the GPU"
    line = str(WarmUp(rounds=3, recorded=0, seconds=0.01, bytes=None))
    assert line == "warm-up: 3 rounds in 0.0 s, none of them recorded"


def test_a_runner_warms_up_the_rounds_of_its_options() -> None:
    executor = LoggingExecutor()
    runner = Runner(Path(), executor, CONSTANTS, Eagle3Drafter(executor, CONSTANTS, None))
    assert runner.warm_up().rounds == 1
    verified = [positions for method, _, positions in executor.calls if method == "target_verify"]
    assert verified[-1] == [-1] * (CONSTANTS.chain_len + 1)
    with pytest.raises(SettingError, match="has caches for 1 sequence"):
        runner.warm_up(2)


def test_a_warm_up_is_refused_while_texts_run() -> None:
    executor = LoggingExecutor()
    runner = Runner(Path(), executor, CONSTANTS, Eagle3Drafter(executor, CONSTANTS, None))
    runner.engine.add(request_of([1], 30, 0))
    with pytest.raises(
        SettingError, match="warm_up: requests are running: call it before the first request"
    ):
        runner.warm_up()
    for trees, option in ((False, "chain length auto"), (True, "tree auto")):
        with pytest.raises(SettingError, match=f"{option}: not measured: call warm_up first"):
            runner.adaptive_schedule(trees)
