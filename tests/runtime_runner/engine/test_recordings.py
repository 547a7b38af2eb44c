"""A round is recorded once for each sampling mode and kind of log probabilities, whatever the other
parameters are; the time that a recording takes is not the round's."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from eagle_aot.runtime_runner.adaptive.costs import CostTable
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import Engine, Failed
from eagle_aot.runtime_runner.engine import engine as engines
from eagle_aot.runtime_runner.program.executor import Part
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.engines import adaptive_schedule_over, request_of, rounds_over
from support.runner.following import Followed, Following
from support.runner.toy import VOCAB, ToyTarget

ROUND, RECORDING = 0.25, 64.0  # seconds


class Clock:
    """Shows what rounds and their recordings have taken."""

    def __init__(self) -> None:
        self.now, self.recorded = 0.0, 0

    def record(self, step: Callable[[], Part]) -> Callable[[], Part]:
        step()
        self.recorded += 1
        self.now += RECORDING
        return lambda: self.replay(step)

    def replay(self, step: Callable[[], Part]) -> Part:
        self.now += ROUND
        return step()


def test_a_mode_is_recorded_when_a_text_first_needs_it() -> None:
    clock, sampler = Clock(), Sampler(1, "cpu", vocab=VOCAB)
    rounds = rounds_over(ToyTarget(1, 16, 9), None, clock.record, sampler)
    round_ = rounds.get_round(1, Shape.chain(0))
    counts = []
    for sampling in (
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
        sampler.begin(0, sampling, [1, 2, 3])
        round_.run()
        counts.append(clock.recorded)
        sampler.end(0)
    assert counts == [1, 2, 2, 3, 3, 3, 4, 4, 5, 5]


def recording_engine(clock: Clock) -> Engine:
    """Return an engine for two sequences, in which no prompt waits for another text's recording."""
    target = Followed(5, 16, 9, sequences=2)
    drafter, sampler = Following(target, [True, False]), Sampler(2, "cpu", length=400, vocab=VOCAB)
    rounds = rounds_over(target, drafter, clock.record, sampler)
    return Engine(adaptive_schedule_over(rounds, drafter), prompt_share=0.999)


@pytest.mark.parametrize("requests", [1, 2])
def test_the_time_of_a_recording_is_not_measured(
    requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that samples is the first one to need its rounds recorded."""
    clock, times, add = Clock(), list[float](), CostTable.add

    def spy(
        self: CostTable, shape: Shape, seconds: Sequence[float], position: int, batch_size: int
    ) -> None:
        times.extend(seconds)
        add(self, shape, seconds, position, batch_size)

    monkeypatch.setattr(CostTable, "add", spy)
    monkeypatch.setattr(engines, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    served = recording_engine(clock)
    for sampling in (GREEDY, SamplingParams(temperature=0.5, seed=1)):
        times.clear()
        before = clock.recorded
        for text in range(requests):
            served.add(request_of([text], 90, "auto", sampling=sampling))
        while served.busy:
            assert not any(isinstance(event, Failed) for event in served.step())
        assert clock.recorded > before
        assert set(times) == {ROUND}
