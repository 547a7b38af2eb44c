"""Statistics, by their definitions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.stats import Stats


def test_counts_by_definition() -> None:
    stats = Stats(chain_len=3, prefill_chunks=2, decode_seconds=2.0)
    stats.add_round(drafted=3, accepted=3, emitted=4)
    stats.add_round(drafted=3, accepted=1, emitted=2)
    stats.add_round(drafted=3, accepted=0, emitted=1)
    assert (stats.rounds, stats.drafted, stats.accepted, stats.emitted) == (3, 9, 4, 7)
    assert stats.target_forwards == 5
    assert stats.tau == 7 / 3
    assert stats.tokens_per_second == 3.5
    assert (stats.reached, stats.accepted_at) == ([3, 2, 1], [2, 1, 1])
    assert stats.looked_at == 6
    assert stats.acceptance_by_position == [2 / 3, 1 / 2, 1]
    assert stats.absolute_acceptance_by_position == [2 / 3, 1 / 3, 1 / 3]
    assert stats.acceptance_rate == 4 / 9
    assert stats.accepted_lengths == [1, 1, 0, 1]


def test_drafts_after_a_stop_token_are_not_counted() -> None:
    stats = Stats(chain_len=5)
    stats.add_round(drafted=5, accepted=2, emitted=2)
    assert (stats.reached, stats.accepted_at, stats.accepted) == ([1, 1], [1, 1], 2)
    assert stats.accepted_lengths == [0, 0, 1, 0, 0, 0]


def test_statistics_of_no_rounds_do_not_divide_by_zero() -> None:
    stats = Stats(chain_len=4)
    assert (stats.tau, stats.tokens_per_second, stats.acceptance_by_position) == (None, None, [])
    assert (stats.acceptance_rate, stats.absolute_acceptance_by_position) == (None, [])


ROUNDS = st.integers(1, 7).flatmap(
    lambda chain: st.tuples(
        st.just(chain), st.lists(st.lists(st.integers(0, chain), max_size=20), min_size=1)
    )
)


def request(chain: int, rounds: list[int]) -> Stats:
    stats = Stats(chain_len=chain, prefill_chunks=1, prefill_seconds=0.25, decode_seconds=0.5)
    for accepted in rounds:
        stats.add_round(drafted=chain, accepted=accepted, emitted=accepted + 1)
    return stats


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(ROUNDS)
def test_figures_agree_with_each_other(requests: tuple[int, list[list[int]]]) -> None:
    """For each request, and for all together, which count as one long request."""
    chain, parts = requests
    every = [request(chain, rounds) for rounds in parts]
    total = Stats.total(every)
    whole = request(chain, [accepted for rounds in parts for accepted in rounds])
    assert total.prefill_chunks == len(parts) and total.decode_seconds == len(parts) / 2
    for name in (
        "rounds",
        "emitted",
        "drafted",
        "reached",
        "accepted_at",
        "accepted_lengths",
        "rounds_by_chain_len",
        "tree",
        "acceptance_by_rank",
    ):
        assert getattr(total, name) == getattr(whole, name)
    for stats in (*every, total):
        lengths = dict(enumerate(stats.accepted_lengths))
        assert sum(lengths.values()) == stats.rounds
        assert sum(n * count for n, count in lengths.items()) == stats.accepted
        if stats.rounds:
            assert stats.tau is not None
            assert stats.tau == pytest.approx(1 + stats.accepted / stats.rounds)
            assert stats.acceptance_rate == pytest.approx((stats.tau - 1) / chain)
        for i, share in enumerate(stats.absolute_acceptance_by_position):
            at_least = sum(count for n, count in lengths.items() if n > i)
            assert share == at_least / stats.rounds
            before = stats.absolute_acceptance_by_position[i - 1] if i else 1
            assert share == pytest.approx(before * stats.acceptance_by_position[i])


def test_a_request_without_drafts_does_not_shorten_the_chain() -> None:
    assert Stats.total([Stats(chain_len=0), request(3, [2])]).chain_len == 3
    assert Stats.total([Stats(chain_len=0), Stats(chain_len="auto")]).chain_len == "auto"


def test_rounds_are_counted_by_their_chain_length() -> None:
    stats = Stats(chain_len="auto")
    for drafted in (0, 3, 3, 1):
        stats.add_round(drafted=drafted, accepted=0, emitted=1)
    assert stats.rounds_by_chain_len == [1, 1, 0, 2]


def test_rounds_are_counted_by_the_shapes_that_were_chosen() -> None:
    parts = [Stats(chain_len="auto", tree="auto") for _ in range(2)]
    parts[0].rounds_by_shape.update({"plain": 2, "tree 4,4,16": 1})
    parts[1].rounds_by_shape.update({"plain": 3})
    total = Stats.total(parts)
    assert total.to_json()["rounds_by_shape"] == {"plain": 5, "tree 4,4,16": 1}
    assert (total.tree, total.to_json()["tree"]) == ("auto", "auto")


def test_a_tree_is_counted_by_depth_and_by_rank() -> None:
    """The second of the root's three drafts was right, and none of the two after it."""
    stats = Stats(chain_len=3, tree=Shape(3, 3, 6))
    stats.add_round(6, 1, 2, ranks=(0, 1, 0, 0), offered_ranks=(0b111, 0b11, 0, 0))
    assert (stats.drafted, stats.accepted, stats.tau) == (6, 1, 2.0)
    assert (stats.reached, stats.accepted_at) == ([1, 1], [1, 0])
    assert (stats.offered_at_rank, stats.accepted_at_rank) == ([2, 2, 1], [0, 1, 0])
    assert stats.looked_at == 5
    stats.add_round(6, 2, 3, ranks=(0, 0, 0, 0), offered_ranks=(0b111, 0b11, 0, 0))  # up to a leaf
    assert (stats.reached, stats.accepted_at) == ([2, 2], [2, 1])
    assert stats.acceptance_by_rank == [2 / 4, 1 / 4, 0.0]
    stats.add_round(6, 2, 1, ranks=(0, 2, 0, 0), offered_ranks=(0b111, 0b11, 1, 0))  # ends at once
    assert (stats.reached, stats.accepted_at, stats.emitted) == ([3, 2], [3, 1], 6)


def test_ranks_may_be_left_out() -> None:
    """By a file of paths, or when the head gives two tokens the same probability."""
    stats = Stats(chain_len=1, tree=Shape.of_paths(((0,), (2,))))
    stats.add_round(2, 1, 2, ranks=(0, 2), offered_ranks=(0b101, 0))
    assert (stats.offered_at_rank, stats.accepted_at_rank) == ([1, 0, 1], [0, 0, 1])
    assert stats.acceptance_by_rank == [0.0, 0.0, 1.0]
