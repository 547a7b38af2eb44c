"""Rounds that are made in advance: which, and what is told of them; and they change nothing."""

import copy
from pathlib import Path

import pytest
import torch

from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.warm_up import WarmUp, warm_up
from eagle_aot.runtime_runner.program.executor import Call
from eagle_aot.runtime_runner.runner import Runner
from support.runner.chosen import fixed_schedule_over
from support.runner.logging_executor import CONSTANTS, LoggingExecutor
from support.runner.toy import MAX_ROWS, TAIL, SeeingDrafter, ToyTarget

SEED = 5


class Recorder:
    """Counts what it is given; `room` recordings have memory."""

    def __init__(self, room: int = 100) -> None:
        self.recorded, self.room = 0, room

    def __call__(self, step: Call) -> Call:
        if self.recorded == self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        self.recorded += 1
        step()
        return lambda: step()


def rounds_of(sequences: int, recorder: Recorder | None) -> Rounds:
    target = ToyTarget(SEED, 16, 9, sequences=sequences)
    running = BatchState(range(sequences), TAIL, "cpu")
    return Rounds(target, SeeingDrafter(target, [True]), running, MAX_ROWS, recorder)


def chains_of(rounds: Rounds, texts: int, lengths: list[int]) -> set[tuple[int, int]]:
    """Sequences and drafts of the rounds of so many texts with these chains."""
    found = rounds.shapes(texts, map(Shape.chain, lengths))
    assert all(shape.is_chain for _, shape in found)
    return {(batch_size, shape.depth) for batch_size, shape in found}


def test_the_buckets_are_those_that_texts_may_meet() -> None:
    recorded, played = rounds_of(8, Recorder()), rounds_of(8, None)
    assert chains_of(recorded, 8, [4]) == {(1, 4), (2, 4), (4, 4), (8, 4)}
    assert chains_of(recorded, 3, [4, 0]) == {(1, 0), (2, 0), (4, 0), (1, 4), (2, 4), (4, 4)}
    assert chains_of(recorded, 8, [15, 7]) == {
        *((batch_size, k) for batch_size in (1, 2, 4) for k in (7, 15)),
        (8, 7),  # rows for no more
    }
    assert chains_of(played, 3, [4]) == {(1, 4), (2, 4), (3, 4)}
    assert chains_of(rounds_of(5, Recorder()), 5, [1]) == {(1, 1), (2, 1), (4, 1), (5, 1)}


@pytest.mark.parametrize("sequences", [1, 4, 5])
@pytest.mark.parametrize("shape", [Shape.chain(4), Shape(3, 3, 9)], ids=str)
def test_behind_it_nothing_is_recorded(sequences: int, shape: Shape) -> None:
    """Whatever is accepted: a recording serves every number of drafts, at every place."""
    recorder = Recorder()
    rounds = rounds_of(sequences, recorder)
    done = warm_up(rounds, sequences, [shape])
    buckets = len(rounds.shapes(sequences, [shape]))
    assert done.rounds == done.recorded == recorder.recorded == buckets
    engine = Engine(fixed_schedule_over(rounds))
    limits = Limits(max_new_tokens=30, stop_ids=frozenset())
    for i in range(2 * sequences):
        engine.add(Request(prompt=(i,), limits=limits, chain_len=shape.depth, tree=shape))
    while engine.busy:
        engine.step()
    assert recorder.recorded == done.recorded


def test_it_changes_nothing() -> None:
    rounds = rounds_of(3, None)
    target, running = rounds.target, rounds.running
    assert isinstance(target, ToyTarget)
    before = copy.deepcopy((target.slots, running.tensors()))
    shapes = Shape.chain(0), Shape.chain(2), Shape(2, 2, 5)
    done = warm_up(rounds, 3, shapes, observed=True)
    assert (done.rounds, done.recorded, done.bytes) == (9, 0, None)
    assert target.forwards == 9 and target.slots == before[0]
    for name, tensor in running.tensors().items():
        assert torch.equal(tensor, before[1][name]), name


def test_memory_that_runs_out_is_said_with_the_round() -> None:
    with pytest.raises(UnsupportedError) as caught:
        warm_up(rounds_of(4, Recorder(room=0)), 4, [Shape.chain(7)])
    line = str(caught.value)
    assert line.startswith(
        "warm-up: a round of 4 sequences with 7 drafts: out of memory on the GPU"
    )
    assert "--max-batch-size" in line


def test_what_is_told_of_it() -> None:
    told = str(WarmUp(rounds=4, recorded=4, seconds=2.34, bytes=150_000_000))
    assert told == "warm-up: 4 rounds in 2.3 s, 4 of them recorded, 0.15 GB of the GPU"
    told = str(WarmUp(rounds=3, recorded=0, seconds=0.01, bytes=None))
    assert told == "warm-up: 3 rounds in 0.0 s, none of them recorded"


def test_a_runner_plays_the_rounds_of_its_options() -> None:
    executor = LoggingExecutor()
    runner = Runner(Path(), executor, CONSTANTS, Eagle3Drafter(executor, CONSTANTS, None))
    assert runner.warm_up().rounds == 1
    verified = [positions for method, _, positions in executor.calls if method == "target_verify"]
    assert verified[-1] == [-1] * (CONSTANTS.chain_len + 1)
    with pytest.raises(SettingError, match="has caches for 1 sequence"):
        runner.warm_up(2)


def test_nothing_is_measured_or_made_in_caches_of_texts_that_run() -> None:
    executor = LoggingExecutor()
    runner = Runner(Path(), executor, CONSTANTS, Eagle3Drafter(executor, CONSTANTS, None))
    limits = Limits(max_new_tokens=30, stop_ids=frozenset())
    runner.engine.add(Request(prompt=(1,), limits=limits, chain_len=0))
    with pytest.raises(SettingError, match="texts run already"):
        runner.warm_up()
    for trees, asked in ((False, "chain length auto"), (True, "tree auto")):
        with pytest.raises(SettingError, match=f"{asked}: not measured: call warm_up first"):
            runner.adaptive_schedule(trees)
