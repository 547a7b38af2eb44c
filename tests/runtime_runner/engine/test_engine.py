"""Requests that are added and cancelled at any time over a toy model, against single texts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from eagle_aot.common.errors import SettingError
from eagle_aot.lab.invariants import check_invariants, check_serial
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import Engine, Event, Finished, Request, Scored, Tokens
from eagle_aot.runtime_runner.engine.engine import PROMPT_SHARE
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.engines import (
    Requests,
    WaitingEngine,
    adaptive_schedule_over,
    record,
    request_of,
    rounds_over,
)
from support.runner.sampled import expected_logprobs, prompt_logprobs, sampled_text, samplings
from support.runner.text_memory import paged
from support.runner.toy import VOCAB, SeeingDrafter, ToyTarget, plain_text

SEED = 11


def engine_of(
    sequences: int,
    pattern: Sequence[bool] = (True, False),
    *,
    recorded: bool = False,
    copies: bool = True,
    waits: bool = False,
    memory: int | None = None,
    max_step_rows: int = 64,
    prompt_share: float = PROMPT_SHARE,
) -> Engine:
    """Return an engine whose target cuts prompts into short chunks, and copies any number of
    rows. Its sequences share `memory` in pages unless that is None."""
    target = ToyTarget(SEED, 16, 9, sequences=sequences)
    pages = None if memory is None else paged(target, memory)
    target.can_copy_rows = copies
    sampler = Sampler(sequences, "cpu", length=400, vocab=VOCAB)
    drafter = SeeingDrafter(target, pattern)
    rounds = rounds_over(target, drafter, record if recorded else None, sampler, max_step_rows)
    schedule = adaptive_schedule_over(rounds, drafter)
    engine = (WaitingEngine if waits else Engine)(schedule, prompt_share, pages=pages)
    engine.sequence_pool.copy_least = 1
    return engine


def alone(request: Request) -> list[int]:
    """Return what plain decoding gives."""
    run = sampled_text(request.prompt, SEED, request.limits.max_new_tokens, request.sampling)
    return request.limits.cut(run)[0]


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=70)
requests = st.builds(
    request_of, prompts, st.integers(1, 40), st.integers(0, 15) | st.just("auto"),
    st.frozensets(st.integers(0, VOCAB - 1), max_size=1), st.booleans(),
    st.sampled_from(
        [None, "auto", Shape(3, 2, 7), Shape(2, 3, 5), Shape(6, 4, 20), Shape.chain(3)]
    ),
    samplings,
)  # fmt: skip


engine_options = st.fixed_dictionaries(
    {
        "sequences": st.integers(1, 5),
        "pattern": st.lists(st.booleans(), min_size=1, max_size=7),
        "recorded": st.booleans(),
        "copies": st.integers(0, 4).map(bool),
        "waits": st.booleans(),
        "memory": st.none() | st.integers(0, 150),
        "max_step_rows": st.sampled_from([16, 64, 256]),
        "prompt_share": st.sampled_from([0.1, PROMPT_SHARE, 0.9]),
    }
)


class EngineMachine(RuleBasedStateMachine):
    """Any order of adding, stepping and cancelling."""

    served = Bundle("served")

    @initialize(options=engine_options)
    def start(self, options: dict[str, Any]) -> None:
        self.engine = engine_of(**options)
        self.requests: dict[int, Request] = {}
        self.got: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self.scored: dict[int, list[TokenLogprobs]] = {}
        self.ended: dict[int, Event] = {}
        self.cancelled: set[int] = set()

    @rule(target=served, number=served, more=prompts, length=st.integers(1, 20))
    def continue_text(self, number: int, more: list[int], length: int) -> int:
        """Add a prompt that begins with another request's text so far."""
        prompt = [*self.requests[number].prompt, *self.got[number], *more]
        return self.submit(request_of(prompt, length, reuse=True))

    @rule(target=served, number=served, cut=st.floats(0, 1), more=prompts, length=st.integers(1, 9))
    def fork_text(self, number: int, cut: float, more: list[int], length: int) -> int:
        """Add a prompt that begins with a part of another request's text."""
        whole = [*self.requests[number].prompt, *self.got[number]]
        prompt = [*whole[: int(cut * len(whole))], *more]
        return self.submit(request_of(prompt, length, reuse=True))

    @rule(target=served, number=served, n=st.integers(1, 4))
    def repeat(self, number: int, n: int) -> int:
        """Add a request again, several times at once."""
        request = replace(self.requests[number], reuse=True)
        return [self.submit(request) for _ in range(n)][-1]

    @rule(target=served, prompt=prompts, reuse=st.booleans())
    def score(self, prompt: list[int], reuse: bool) -> int:
        """Add a request for nothing but log probabilities of a prompt."""
        scoring = SamplingParams(prompt_logprobs=2)
        return self.submit(request_of(prompt, 0, 0, reuse=reuse, sampling=scoring))

    @rule(target=served, request=requests)
    def add(self, request: Request) -> int:
        return self.submit(request)

    def submit(self, request: Request) -> int:
        number = self.engine.add(request)
        self.requests[number], self.got[number], self.logprobs[number] = request, [], []
        self.scored[number] = []
        return number

    @rule(steps=st.integers(1, 12))
    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.take(self.engine.step())

    @rule(number=consumes(served))
    def cancel(self, number: int) -> None:
        self.engine.cancel(number)
        self.cancelled.add(number)

    def take(self, events: list[Event]) -> None:
        for event in events:
            assert event.request not in self.ended, "an event after the last"
            if isinstance(event, Tokens):
                assert event.tokens
                self.got[event.request] += event.tokens
                self.logprobs[event.request] += event.logprobs
            elif isinstance(event, Scored):
                assert event.logprobs and not self.got[event.request]
                self.scored[event.request] += event.logprobs
            else:
                self.ended[event.request] = event

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "engine"):
            check_invariants(self.engine)

    @rule()
    def each_sees_its_own_text(self) -> None:
        check_serial(self.engine)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.engine.busy:
            self.take(self.engine.step())
        check_invariants(self.engine)
        assert set(self.ended) == set(self.requests)
        for number, request in self.requests.items():
            end, expected = self.ended[number], alone(request)
            assert isinstance(end, Finished)
            if end.reason == "cancelled":
                assert number in self.cancelled
                assert self.got[number] == expected[: len(self.got[number])]
            else:
                assert self.got[number] == expected
            check_logprobs(request, self.got[number], self.logprobs[number])
            check_scored(request, self.scored[number], whole=end.reason != "cancelled")


def check_scored(request: Request, scored: list[TokenLogprobs], *, whole: bool) -> None:
    expected = prompt_logprobs(request.prompt, SEED, request.sampling.prompt_logprobs)
    assert len(scored) == len(expected) or not whole
    for token, (number, logprob, top) in zip(scored, expected, strict=False):
        assert token.id == number
        assert token.logprob == (None if logprob is None else pytest.approx(logprob, abs=1e-5))
        check_top(token, top)


def check_logprobs(request: Request, output: list[int], logprobs: list[TokenLogprobs]) -> None:
    expected = expected_logprobs(request.prompt, output, SEED, request.sampling)
    assert [token.id for token in logprobs] == output[: len(expected)]
    for token, (logprob, top) in zip(logprobs, expected, strict=True):
        assert token.logprob == pytest.approx(logprob, abs=1e-5)
        check_top(token, top)


def check_top(token: TokenLogprobs, expected: list[tuple[int, float]]) -> None:
    assert [number for number, _ in token.top] == [number for number, _ in expected]
    assert [lp for _, lp in token.top] == pytest.approx([lp for _, lp in expected], abs=1e-5)


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_all_sequences_share_a_forward() -> None:
    requests = Requests(engine_of(4, [True]))
    for i in range(4):
        requests.add(request_of([i], 21))
    requests.finish()
    target = requests.engine.schedule.target
    assert isinstance(target, ToyTarget)
    # Four prompts of one chunk each; then 20 tokens each in rounds of five, a few of them shared by
    # all, the first ones by those that were there.
    assert target.forwards < 4 + 4 + 4 * 3


def test_a_request_without_drafts_runs_next_to_one_with_drafts() -> None:
    requests = Requests(engine_of(2, [True]))
    plain, drafted = requests.add(request_of([1], 21, 0)), requests.add(request_of([2], 21, 4))
    requests.finish()
    stats = {number: end.stats for number, end in requests.ends.items()}
    assert (stats[plain].drafted, stats[plain].tau) == (0, 1.0)
    assert stats[drafted].tau == 5.0


def test_more_drafts_than_rows_for_all_are_cut() -> None:
    requests = Requests(engine_of(5, [True], recorded=True))
    for i in range(5):
        requests.add(request_of([i], 33, 15))
    requests.finish()
    assert requests.tokens == {i: plain_text([i], SEED, 33) for i in range(5)}


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    requests = Requests(engine_of(2))
    long, short = requests.add(request_of([1] * 320, 2)), requests.add(request_of([2] * 30, 2))
    requests.finish()
    assert [*requests.ends] == [short, long]


def test_running_texts_continue_while_a_long_prompt_runs() -> None:
    requests = Requests(engine_of(2, [False]))
    first = requests.add(request_of([1], 200, 0))
    requests.step()
    long = requests.add(request_of([2] * 640, 2))
    requests.step_until(lambda: bool(requests.tokens[long]))
    assert len(requests.tokens[first]) > 10


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_prompt_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(SettingError, match="between 0 and 1"):
        Engine(engine_of(1).schedule, share)


def test_a_request_that_samples_has_a_seed() -> None:
    sampling = SamplingParams(temperature=1.0)
    with pytest.raises(SettingError, match="needs a seed"):
        request_of([1], 4, sampling=sampling)
    assert request_of([1], 4, sampling=sampling.drawn()).sampling.seed is not None
