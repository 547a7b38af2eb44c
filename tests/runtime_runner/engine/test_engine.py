"""Requests that come and go over a toy model, against one text at a time."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from eagle_aot.common.errors import SettingError
from eagle_aot.lab.invariants import check_invariants, check_serial
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import (
    Engine,
    Event,
    Failed,
    Finished,
    Request,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.program.executor import Call
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.chosen import request_of, schedule_over
from support.runner.sampled import prompt_logprobs, sampled_text, samplings, told_logprobs
from support.runner.toy import MAX_ROWS, TAIL, VOCAB, SeeingDrafter, ToyTarget, plain_text
from support.runner.waiting import Waiting

SEED = 11


def engine_of(
    sequences: int,
    pattern: Sequence[bool] = (True, False),
    *,
    recorded: bool = False,
    copies: bool = True,
    waits: bool = False,
) -> Engine:
    """Over a toy target that cuts prompts into short chunks, of which no copy is too short."""
    target = ToyTarget(SEED, 16, 9, sequences=sequences)
    target.copies = copies
    sampler = Sampler(sequences, "cpu", length=400, vocab=VOCAB)
    running = BatchState(range(sequences), TAIL, "cpu", sampler)

    def record(step: Call) -> Call:
        step()
        return step

    drafter = SeeingDrafter(target, pattern)
    rounds = Rounds(target, drafter, running, MAX_ROWS, record if recorded else None)
    engine = (Waiting if waits else Engine)(schedule_over(rounds))
    engine.cache_slots.copy_least = 1
    return engine


def alone(request: Request) -> list[int]:
    """What plain decoding gives."""
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


class Comings(RuleBasedStateMachine):
    """Any order of adding, stepping and cancelling."""

    served = Bundle("served")

    @initialize(
        sequences=st.integers(1, 5),
        pattern=st.lists(st.booleans(), min_size=1, max_size=7),
        recorded=st.booleans(),
        copies=st.integers(0, 4),
        waits=st.booleans(),
    )
    def start(
        self, sequences: int, pattern: list[bool], recorded: bool, copies: int, waits: bool
    ) -> None:
        how = {"recorded": recorded, "copies": copies > 0, "waits": waits}
        self.engine = engine_of(sequences, pattern, **how)
        self.asked: dict[int, Request] = {}
        self.got: dict[int, list[int]] = {}
        self.told: dict[int, list[TokenLogprobs]] = {}
        self.scored: dict[int, list[TokenLogprobs]] = {}
        self.ended: dict[int, Event] = {}
        self.cancelled: set[int] = set()

    @rule(target=served, number=served, behind=prompts, room=st.integers(1, 20))
    def go_on_from(self, number: int, behind: list[int], room: int) -> int:
        """Another text that begins like one which may have been served, and its output."""
        prompt = [*self.asked[number].prompt, *self.got[number], *behind]
        return self.add(request_of(prompt, room, reuse=True))

    @rule(target=served, number=served, cut=st.floats(0, 1), behind=prompts, room=st.integers(1, 9))
    def turn_off_from(self, number: int, cut: float, behind: list[int], room: int) -> int:
        """Another text that begins as one which may be served, and goes another way."""
        whole = [*self.asked[number].prompt, *self.got[number]]
        return self.add(request_of([*whole[: int(cut * len(whole))], *behind], room, reuse=True))

    @rule(target=served, number=served, n=st.integers(1, 4))
    def ask_again(self, number: int, n: int) -> int:
        """The same prompt, several times at once."""
        asked = replace(self.asked[number], reuse=True)
        return [self.add(asked) for _ in range(n)][-1]

    @rule(target=served, prompt=prompts, reuse=st.booleans())
    def score(self, prompt: list[int], reuse: bool) -> int:
        """Nothing is wanted but what is told of the prompt."""
        return self.add(
            request_of(prompt, 0, 0, reuse=reuse, sampling=SamplingParams(prompt_logprobs=2))
        )

    @rule(target=served, request=requests)
    def add(self, request: Request) -> int:
        number = self.engine.add(request)
        self.asked[number], self.got[number], self.told[number] = request, [], []
        self.scored[number] = []
        return number

    @rule(steps=st.integers(1, 12))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.take(self.engine.step())

    @rule(number=consumes(served))
    def cancel(self, number: int) -> None:
        self.engine.cancel(number)
        self.cancelled.add(number)

    def take(self, events: list[Event]) -> None:
        for event in events:
            assert event.request not in self.ended, "an event behind the last"
            if isinstance(event, Tokens):
                assert event.tokens
                self.got[event.request] += event.tokens
                self.told[event.request] += event.logprobs
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
    def all_see_their_own_texts(self) -> None:
        check_serial(self.engine)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.engine.busy:
            self.take(self.engine.step())
        check_invariants(self.engine)
        assert set(self.ended) == set(self.asked)
        for number, request in self.asked.items():
            end, expected = self.ended[number], alone(request)
            assert isinstance(end, Finished)
            if end.reason == "cancelled":
                assert number in self.cancelled
                assert self.got[number] == expected[: len(self.got[number])]
            else:
                assert self.got[number] == expected
            check_told(request, self.got[number], self.told[number])
            check_scored(request, self.scored[number], whole=end.reason != "cancelled")


def check_scored(request: Request, told: list[TokenLogprobs], *, whole: bool) -> None:
    expected = prompt_logprobs(request.prompt, SEED, request.sampling.prompt_logprobs)
    assert len(told) == len(expected) or not whole
    for one, (token, logprob, top) in zip(told, expected, strict=False):
        assert one.id == token and [found for found, _ in one.top] == [found for found, _ in top]
        assert one.logprob == (None if logprob is None else pytest.approx(logprob, abs=1e-5))
        assert [found for _, found in one.top] == pytest.approx([lp for _, lp in top], abs=1e-5)


def check_told(request: Request, output: list[int], told: list[TokenLogprobs]) -> None:
    expected = told_logprobs(request.prompt, output, SEED, request.sampling)
    assert [one.id for one in told] == output[: len(expected)]
    for one, (logprob, top) in zip(told, expected, strict=True):
        assert one.logprob == pytest.approx(logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in top]
        assert [found for _, found in one.top] == pytest.approx([lp for _, lp in top], abs=1e-5)


TestComings = Comings.TestCase
TestComings.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def serve(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.busy:
        events += engine.step()
    return events


def tokens_of(events: list[Event], number: int) -> list[int]:
    told = [e.tokens for e in events if isinstance(e, Tokens) and e.request == number]
    return [token for run in told for token in run]


def test_all_sequences_share_a_forward() -> None:
    engine = engine_of(4, [True])
    for i in range(4):
        engine.add(request_of([i], 21))
    serve(engine)
    target = engine.schedule.target
    assert isinstance(target, ToyTarget)
    # Four prompts of one chunk each; then 20 tokens each in rounds of five, a few of them shared by
    # all, the first ones by those that were there.
    assert target.forwards < 4 + 4 + 4 * 3


def test_a_request_that_does_not_speculate_beside_one_that_does() -> None:
    engine = engine_of(2, [True])
    plain, drafting = engine.add(request_of([1], 21, 0)), engine.add(request_of([2], 21, 4))
    stats = {e.request: e.stats for e in serve(engine) if isinstance(e, Finished)}
    assert (stats[plain].drafted, stats[plain].tau) == (0, 1.0)
    assert stats[drafting].tau == 5.0


def test_more_drafts_than_rows_for_all_are_cut() -> None:
    engine = engine_of(5, [True], recorded=True)
    numbers = [engine.add(request_of([i], 33, 15)) for i in range(5)]
    events = serve(engine)
    for i, number in enumerate(numbers):
        assert tokens_of(events, number) == plain_text([i], SEED, 33)


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    engine = engine_of(2)
    long, short = engine.add(request_of([1] * 320, 2)), engine.add(request_of([2] * 30, 2))
    ends = [e.request for e in serve(engine) if isinstance(e, Finished)]
    assert ends == [short, long]


def test_running_texts_go_on_beside_a_long_prompt() -> None:
    engine = engine_of(2, [False])
    first = engine.add(request_of([1], 200, 0))
    engine.step()
    long = engine.add(request_of([2] * 640, 2))
    before = []
    while not tokens_of(before, long):
        before += engine.step()
    assert len(tokens_of(before, first)) > 10


class Breaking(ToyTarget):
    """Fails in the first round of two texts."""

    failed = False

    def verify(self, step, moves):  # type: ignore[no-untyped-def]
        if not self.failed and (step.positions[:, 0] >= 0).sum() == 2:
            self.failed = True
            raise RuntimeError("out of\nmemory")
        return super().verify(step, moves)


def test_what_fails_ends_those_it_was_for() -> None:
    target = Breaking(SEED, 16, 9, sequences=2)
    rounds = Rounds(target, None, BatchState(range(2), TAIL, "cpu"), MAX_ROWS, None)
    engine = Engine(schedule_over(rounds))
    numbers = [engine.add(request_of([i], 12)) for i in range(4)]
    events = serve(engine)
    failed = [e for e in events if isinstance(e, Failed)]
    assert [e.request for e in failed] == numbers[:2]
    assert {e.error for e in failed} == {"out of memory"}
    for i in (2, 3):
        assert tokens_of(events, numbers[i]) == plain_text([i], SEED, 12)
    check_invariants(engine)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(SettingError, match="between 0 and 1"):
        Engine(engine_of(1).schedule, share)


def test_a_request_that_samples_has_a_seed() -> None:
    asked = SamplingParams(temperature=1.0)
    with pytest.raises(SettingError, match="needs a seed"):
        request_of([1], 4, sampling=asked)
    assert request_of([1], 4, sampling=asked.drawn()).sampling.seed is not None
