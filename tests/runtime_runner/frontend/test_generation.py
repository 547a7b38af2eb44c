"""The loop against a toy model, over prompts, chunkings, drafters, budgets and stop tokens."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chooser import Chooser
from eagle_aot.runtime_runner.adaptive.costs import CostTable, MeasuredCosts
from eagle_aot.runtime_runner.adaptive.schedule import AdaptiveSchedule
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Drafter, Round
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.engine.schedule import BatchSchedule, OneRound
from eagle_aot.runtime_runner.frontend.generation import (
    Callbacks,
    Generation,
    TextIterator,
    finish_reason,
    generate,
)
from eagle_aot.runtime_runner.frontend.stream import TextStream
from support.runner.engines import decode
from support.runner.toy import TAIL, VOCAB, RecordingDrafter, ToyTarget, TreeDrafter, plain_text


def single() -> BatchState:
    """Return the state of one sequence."""
    return BatchState([0], TAIL, "cpu")


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60),
    longest=st.integers(1, 40),
    min_prefill=st.integers(9, 12),
    pattern=st.lists(st.booleans(), min_size=1, max_size=9),
    max_new_tokens=st.integers(1, 40),
    chain_len=st.integers(1, 15),
    stop_ids=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
)
def test_every_drafter_gives_the_plain_text(
    seed: int,
    prompt: list[int],
    longest: int,
    min_prefill: int,
    pattern: list[bool],
    max_new_tokens: int,
    chain_len: int,
    stop_ids: frozenset[int],
) -> None:
    endless = plain_text(prompt, seed, max_new_tokens)
    last = next((i for i, token in enumerate(endless) if token in stop_ids), max_new_tokens)
    expected = endless[: last + 1]
    drafter = RecordingDrafter([*prompt, *endless], pattern)
    target = ToyTarget(seed, longest, min_prefill)
    runs: list[list[int]] = []
    limits = Limits(max_new_tokens=max_new_tokens, stop_ids=stop_ids)
    round_ = Round(target, drafter, chain_len, single())
    output, stats = decode(round_, prompt, limits, runs.append)
    assert output == expected == [token for run in runs for token in run]
    assert target.forwards == stats.rounds + stats.prefill_chunks == stats.target_forwards
    assert stats.emitted == len(output) - 1
    assert stats.accepted <= stats.drafted == stats.rounds * chain_len
    assert all(a <= r for a, r in zip(stats.accepted_at, stats.reached, strict=True))
    # Every round emits its accepted drafts and the target's own token, unless a stop ends it.
    assert stats.rounds - 1 <= stats.emitted - stats.accepted <= stats.rounds


def test_without_a_drafter_a_forward_gives_one_token() -> None:
    target = ToyTarget(3, 16, 9)
    limits = Limits(max_new_tokens=12, stop_ids=frozenset())
    output, stats = decode(Round(target, None, 4, single()), [1, 2, 3], limits)
    assert output == plain_text([1, 2, 3], 3, 12)
    assert (stats.rounds, stats.drafted, stats.chain_len, stats.tau) == (11, 0, 0, 1.0)


@pytest.mark.parametrize(
    ("right", "rounds", "accepted"), [([True], 3, 9), ([False], 11, 0), ([True, False], 6, 6)]
)
def test_rounds_follow_acceptance(right: list[bool], rounds: int, accepted: int) -> None:
    prompt = [5, 6, 7]
    text = prompt + plain_text(prompt, 1, 12)
    limits = Limits(max_new_tokens=12, stop_ids=frozenset())
    round_ = Round(ToyTarget(1, 16, 9), RecordingDrafter(text, right), 4, single())
    _, stats = decode(round_, prompt, limits)
    assert (stats.rounds, stats.accepted) == (rounds, accepted)


@pytest.mark.parametrize(("new_tokens", "stopped", "remaining", "limit", "reason"), [
    (2, True, 2, 2, "stop"), (2, False, 2, 2, "length"), (2, False, 2, 3, "context"),
    (1, False, 2, 2, "cancelled"),
])  # fmt: skip
def test_finish_reason(
    new_tokens: int, stopped: bool, remaining: int, limit: int, reason: str
) -> None:
    assert finish_reason(new_tokens, stopped, remaining, limit) == reason


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    pattern=st.lists(st.booleans(), min_size=1, max_size=9),
    chain_len=st.integers(0, 7),
    length=st.integers(1, 30),
)
def test_the_function_that_ends_a_text_is_called_with_each_token(
    seed: int, prompt: list[int], pattern: list[bool], chain_len: int, length: int
) -> None:
    """It is called once for each token of a round. Tokens after the end are not counted."""
    endless = plain_text(prompt, seed, 30)
    drafter = RecordingDrafter([*prompt, *endless], pattern) if chain_len else None
    seen: list[int] = []

    def ends(token: int) -> bool:
        seen.append(token)
        return len(seen) == length

    limits = Limits(max_new_tokens=30, stop_ids=frozenset(), is_stop=ends)
    round_ = Round(ToyTarget(seed, 16, 9), drafter, chain_len, single())
    output, stats = decode(round_, prompt, limits)
    assert output == seen == endless[:length]
    assert stats.emitted == length - 1


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    pattern=st.lists(st.booleans(), min_size=1, max_size=9),
    limits_of_texts=st.lists(st.integers(2, 60), min_size=1, max_size=3),
    steps=st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7),
    row=st.floats(0.0, 0.2),
    capacity=st.integers(1, 40),
)
def test_chosen_lengths_give_the_plain_text(
    seed: int,
    prompt: list[int],
    pattern: list[bool],
    limits_of_texts: list[int],
    steps: list[float],
    row: float,
    capacity: int,
) -> None:
    """For any costs of rounds, and several texts. The drafter sees every slot in order, or misses
    some when its backlog is too long."""
    prices = [1.0, *(1 + sum(steps[: k + 1]) for k in range(7))]
    costs = MeasuredCosts(
        positions=(0, 100), rounds={Shape.chain(k): (p, p) for k, p in enumerate(prices)},
        catch_up_rows=capacity, catch_up=(row, capacity * row),
    )  # fmt: skip
    chooser = Chooser(CostTable(costs))
    for max_new_tokens in limits_of_texts:
        expected = plain_text(prompt, seed, max_new_tokens)
        drafter = RecordingDrafter(
            [*prompt, *expected], pattern, may_skip=capacity < max_new_tokens
        )
        target, running = ToyTarget(seed, 16, 9), single()
        backlog = Backlog(drafter, capacity, running)
        drafters: list[Drafter] = [backlog, *[drafter] * 7]
        rounds = [Round(target, d, k, running) for k, d in enumerate(drafters)]
        limits = Limits(max_new_tokens=max_new_tokens, stop_ids=frozenset())
        chosen = AdaptiveSchedule(rounds, backlog, chooser)
        every = Rounds(target, drafter, running, 64, 64, None)
        shared = BatchSchedule(every, chooser, lambda trees: chosen)  # noqa: B023
        request = Request(prompt=tuple(prompt), limits=limits, chain_len="auto")
        engine = Engine(shared)
        result = generate(engine, Generation(request=request))
        output, stats, cached = result.token_ids, result.stats, engine.sequence_pool.cached(0)
        missed = next(slot for slot in itertools.count() if slot not in drafter.slots[0])
        assert cached.drafter_rows == min(missed, cached.rows), "the drafter has a gap"
        assert output == expected
        assert sum(stats.rounds_by_chain_len) == stats.rounds
        assert stats.chain_len == "auto"


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Draws the parents of up to 63 drafts, at most 15 deep."""
    parents: list[int] = []
    depth = [0]
    for _ in range(draw(st.integers(1, 63))):
        deepest = [row for row, d in enumerate(depth) if d < TAIL - 1]
        parents.append(draw(st.sampled_from(deepest[-8:] + deepest[:2])))
        depth.append(depth[parents[-1]] + 1)
    return parents


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    pattern=st.lists(st.booleans(), min_size=1, max_size=9),
    parents=trees(),
    max_new_tokens=st.integers(2, 40),
)
def test_every_tree_gives_the_plain_text(
    seed: int, prompt: list[int], pattern: list[bool], parents: list[int], max_new_tokens: int
) -> None:
    """Its nodes lie in scattered slots; accepted ones are moved to the slots of their positions."""
    expected = plain_text(prompt, seed, max_new_tokens)
    drafter = TreeDrafter([*prompt, *expected], pattern, parents)
    round_ = Round(ToyTarget(seed, 16, 9), drafter, drafter.shape, single())
    limits = Limits(max_new_tokens=max_new_tokens, stop_ids=frozenset())
    output, stats = decode(round_, prompt, limits)
    assert output == expected
    if all(pattern) and max_new_tokens > 2:
        assert stats.rounds < max_new_tokens - 1


def digits(ids: list[int]) -> str:
    return "".join(f"{token:02}" for token in ids)


class FailingTarget(ToyTarget):
    """Fails in the forward of that number."""

    fails_at = 10**6

    def verify(self, step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        if self.forwards >= self.fails_at:
            raise RuntimeError("a kernel failed")
        return super().verify(step, moves)


def iterated(engine: Engine, max_new_tokens: int = 6) -> TextIterator:
    """Iterate over the text of a prompt."""

    def begin(callbacks: Callbacks) -> Generation:
        text = TextStream(digits, (), callbacks.on_text)
        limits = Limits(
            max_new_tokens=max_new_tokens, stop_ids=frozenset(), is_stop=text.add
        )  # fmt: skip
        request = Request(prompt=(1, 2, 3), limits=limits, chain_len=0)
        return Generation(request=request, text=text, decode=digits, callbacks=callbacks)

    return TextIterator(engine, begin)


def test_iterated_text_is_that_of_the_result() -> None:
    engine = Engine(OneRound(Round(ToyTarget(7, 8, 4), None, 0, single())))
    text = iterated(engine)
    parts = [next(text)]
    assert text.result is None
    parts += text
    assert parts == [f"{token:02}" for token in plain_text([1, 2, 3], 7, 6)]
    assert text.result is not None and text.result.text == "".join(parts)


def test_an_iterator_that_is_dropped_or_closed_frees_the_engine() -> None:
    engine = Engine(OneRound(Round(ToyTarget(7, 8, 4), None, 0, single())))
    for _ in iterated(engine, 10**6):
        break  # which drops the iterator
    assert not engine.busy
    open_text = iterated(engine, 10**6)
    next(open_text)
    with pytest.raises(SettingError, match="another generation has not ended"):
        next(iterated(engine))
    open_text.close()
    assert not engine.busy and list(open_text) == [] and open_text.result is None
    assert len(list(iterated(engine))) == 6


def test_an_iterator_raises_the_error_of_a_forward() -> None:
    target = FailingTarget(7, 8, 4)
    engine = Engine(OneRound(Round(target, None, 0, single())))
    text = iterated(engine)
    next(text)
    target.fails_at = target.forwards
    with pytest.raises(RuntimeError, match="a kernel failed"):
        list(text)
    assert not engine.busy and text.result is None
