"""One recording of a round for each kind of choice and what is told, and none for parameters."""

from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.executors import Call
from eagle_aot.runtime_runner.rounds.round import Running
from eagle_aot.runtime_runner.rounds.shape import Shape
from eagle_aot.runtime_runner.sampling.parameters import GREEDY, Sampling
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.toy import MAX_ROWS, TAIL, VOCAB, ToyTarget


def test_a_kind_is_recorded_when_a_text_first_needs_it() -> None:
    recorded: list[Call] = []

    def record(step: Call) -> Call:
        recorded.append(step)
        step()
        return step

    sampler = Sampler(1, "cpu", vocab=VOCAB)
    running = Running([0], TAIL, "cpu", sampler)
    rounds = Rounds(ToyTarget(1, 16, 9), None, running, MAX_ROWS, record)
    round_ = rounds.of(1, Shape.chain(0))
    counts = []
    for asked in (
        GREEDY,
        Sampling(temperature=0.5, seed=1),
        Sampling(temperature=2.0, seed=2),
        Sampling(top_k=9, temperature=0.5, seed=1),
        Sampling(presence_penalty=0.5),
        GREEDY,
        Sampling(logprobs=0),
        Sampling(logprobs=20),
        Sampling(logprobs=3, logprobs_of="sampling", temperature=0.5, seed=1),
        Sampling(temperature=0.5, seed=1),
    ):
        sampler.begin(0, asked, [1, 2, 3])
        round_.play()
        counts.append(len(recorded))
        sampler.end(0)
    assert counts == [1, 2, 2, 3, 3, 3, 4, 4, 5, 5]
