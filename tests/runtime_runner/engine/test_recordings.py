"""One recording of a round for each kind of choice and what is told, and none for parameters; the
time that it takes is not the round's."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_aot.runtime_runner.adaptive import schedule as adaptive
from eagle_aot.runtime_runner.adaptive.batch import BatchChooser
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import Engine, Failed
from eagle_aot.runtime_runner.engine import engine as engines
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.schedule import SharedRounds
from eagle_aot.runtime_runner.program.executor import Call
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.chosen import alone_over, request_of
from support.runner.following import Followed, Following
from support.runner.toy import MAX_ROWS, TAIL, VOCAB, ToyTarget

ROUND, RECORDING = 0.25, 64.0  # seconds


def test_a_kind_is_recorded_when_a_text_first_needs_it() -> None:
    recorded: list[Call] = []

    def record(step: Call) -> Call:
        recorded.append(step)
        step()
        return step

    sampler = Sampler(1, "cpu", vocab=VOCAB)
    running = BatchState([0], TAIL, "cpu", sampler)
    rounds = Rounds(ToyTarget(1, 16, 9), None, running, MAX_ROWS, record)
    round_ = rounds.of(1, Shape.chain(0))
    counts = []
    for asked in (
        GREEDY,
        SamplingParams(temperature=0.5, seed=1),
        SamplingParams(temperature=2.0, seed=2),
        SamplingParams(top_k=9, temperature=0.5, seed=1),
        SamplingParams(presence_penalty=0.5),
        GREEDY,
        SamplingParams(logprobs=0),
        SamplingParams(logprobs=20),
        SamplingParams(logprobs=3, logprobs_of="sampling", temperature=0.5, seed=1),
        SamplingParams(temperature=0.5, seed=1),
    ):
        sampler.begin(0, asked, [1, 2, 3])
        round_.play()
        counts.append(len(recorded))
        sampler.end(0)
    assert counts == [1, 2, 2, 3, 3, 3, 4, 4, 5, 5]


class Clock:
    """Shows what rounds and their recordings have taken."""

    def __init__(self) -> None:
        self.now, self.recorded = 0.0, 0

    def record(self, step: Call) -> Call:
        step()
        self.recorded += 1
        self.now += RECORDING
        return lambda: self.replay(step)

    def replay(self, step: Call) -> Any:
        self.now += ROUND
        return step()


def recording_engine(clock: Clock) -> Engine:
    """For two sequences."""
    target = Followed(5, 16, 9, sequences=2)
    running = BatchState(range(2), TAIL, "cpu", Sampler(2, "cpu", length=400, vocab=VOCAB))
    rounds = Rounds(target, Following(target, [True, False]), running, MAX_ROWS, clock.record)
    schedule = SharedRounds(rounds, partial(alone_over, rounds))
    return Engine(schedule, prompt_share=0.999)  # a prompt waits for no recording of another text


@pytest.mark.parametrize(("chooser", "texts"), [(Chooser, 1), (BatchChooser, 2)])
def test_a_round_that_is_recorded_for_a_text_that_samples_is_no_measurement(
    chooser: type, texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told, observe = Clock(), list[float | None](), chooser.observe  # type: ignore[attr-defined]

    def heard(self: object, *what: Any) -> None:
        told.append(what[-1])
        observe(self, *what)

    monkeypatch.setattr(chooser, "observe", heard)
    for module in (engines, adaptive):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    served = recording_engine(clock)
    for sampling in (GREEDY, SamplingParams(temperature=0.5, seed=1)):
        told.clear()
        before = clock.recorded
        for text in range(texts):
            served.add(request_of([text], 90, "auto", sampling=sampling))
        while served.busy:
            assert not any(isinstance(event, Failed) for event in served.step())
        assert clock.recorded > before
        assert {one for one in told if one is not None} == {ROUND}
