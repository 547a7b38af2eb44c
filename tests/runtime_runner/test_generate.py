"""The loop against a toy model, over prompts, chunkings, drafters, budgets and stop tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.adaptive.backlog import Backlog
from eagle_aot.runtime_runner.adaptive.chain_length import ChainLength
from eagle_aot.runtime_runner.adaptive.round_costs import RoundCosts
from eagle_aot.runtime_runner.adaptive.rounds import ChosenRounds, SameRound
from eagle_aot.runtime_runner.generate import Limits, cut_behind_stop, generate
from eagle_aot.runtime_runner.round import Cursor, Drafter, Round
from eagle_aot.runtime_runner.runner import finish_reason
from support.toy import VOCAB, RecordingDrafter, ToyVerifier, plain_text


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60),
    longest=st.integers(1, 40),
    min_prefill=st.integers(9, 12),
    pattern=st.lists(st.booleans(), min_size=1, max_size=9),
    room=st.integers(1, 40),
    chain_len=st.integers(1, 7),
    stop_ids=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
)
def test_every_drafter_gives_the_plain_text(
    seed: int,
    prompt: list[int],
    longest: int,
    min_prefill: int,
    pattern: list[bool],
    room: int,
    chain_len: int,
    stop_ids: frozenset[int],
) -> None:
    endless = plain_text(prompt, seed, room)
    expected = cut_behind_stop(endless, stop_ids)
    drafter = RecordingDrafter([*prompt, *endless], pattern)
    verifier = ToyVerifier(seed, longest, min_prefill)
    runs: list[list[int]] = []
    limits = Limits(room=room, stop_ids=stop_ids)
    round_ = Round(verifier, drafter, chain_len)
    output, stats = generate(SameRound(round_), prompt, limits, runs.append)
    assert output == expected == [token for run in runs for token in run]
    assert verifier.forwards == stats.rounds + stats.prefill_chunks == stats.target_forwards
    assert stats.emitted == len(output) - 1
    assert stats.accepted <= stats.drafted == stats.rounds * chain_len
    assert all(a <= r for a, r in zip(stats.accepted_at, stats.reached, strict=True))
    # Every round emits its accepted drafts and the target's own token, unless a stop ends it.
    assert stats.rounds - 1 <= stats.emitted - stats.accepted <= stats.rounds


def test_no_drafter_is_one_token_per_forward() -> None:
    verifier = ToyVerifier(3, 16, 9)
    limits = Limits(room=12, stop_ids=frozenset())
    output, stats = generate(
        SameRound(Round(verifier, None, 4)), [1, 2, 3], limits, lambda run: None
    )
    assert output == plain_text([1, 2, 3], 3, 12)
    assert (stats.rounds, stats.drafted, stats.chain_len, stats.tau) == (11, 0, 0, 1.0)


@pytest.mark.parametrize(
    ("right", "rounds", "accepted"), [([True], 3, 9), ([False], 11, 0), ([True, False], 6, 6)]
)
def test_rounds_follow_acceptance(right: list[bool], rounds: int, accepted: int) -> None:
    prompt = [5, 6, 7]
    text = prompt + plain_text(prompt, 1, 12)
    limits = Limits(room=12, stop_ids=frozenset())
    round_ = Round(ToyVerifier(1, 16, 9), RecordingDrafter(text, right), 4)
    _, stats = generate(SameRound(round_), prompt, limits, lambda run: None)
    assert (stats.rounds, stats.accepted) == (rounds, accepted)


@pytest.mark.parametrize(
    ("output", "budget", "reason"),
    [([4, 9], 2, "stop"), ([4, 5], 2, "length"), ([4, 5], 3, "context"), ([9], 5, "stop")],
)
def test_finish_reason(output: list[int], budget: int, reason: str) -> None:
    assert finish_reason(output, frozenset({9}), budget) == reason


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    pattern=st.lists(st.booleans(), min_size=1, max_size=9),
    rooms=st.lists(st.integers(2, 60), min_size=1, max_size=3),
    steps=st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7),
    row=st.floats(0.0, 0.2),
    capacity=st.integers(1, 40),
)
def test_chosen_lengths_give_the_plain_text(
    seed: int,
    prompt: list[int],
    pattern: list[bool],
    rooms: list[int],
    steps: list[float],
    row: float,
    capacity: int,
) -> None:
    """Whatever rounds cost, text after text; the drafter sees every slot, in its turn, or is left
    out until its backlog was too long."""
    prices = [1.0, *(1 + sum(steps[: k + 1]) for k in range(7))]
    costs = RoundCosts(
        positions=(0, 100), rounds=[(p, p) for p in prices], rows=capacity,
        catch_up=(row, capacity * row),
    )  # fmt: skip
    chooser = ChainLength(costs)
    for room in rooms:
        expected = plain_text(prompt, seed, room)
        drafter = RecordingDrafter([*prompt, *expected], pattern, may_skip=capacity < room)
        verifier, cursor, backlog = ToyVerifier(seed, 16, 9), Cursor(), Backlog(drafter, capacity)
        drafters: list[Drafter] = [backlog, *[drafter] * 7]
        rounds = [Round(verifier, d, k, "cpu", cursor) for k, d in enumerate(drafters)]
        limits = Limits(room=room, stop_ids=frozenset())
        chosen = ChosenRounds(rounds, backlog, chooser)
        output, stats = generate(chosen, prompt, limits, lambda run: None)
        assert output == expected
        assert sum(stats.rounds_by_chain_len) == stats.rounds
        assert stats.chain_len == "auto"
