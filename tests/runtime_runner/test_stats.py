from eagle_aot.runtime_runner.stats import Stats


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
    assert stats.acceptance_by_position == [2 / 3, 1 / 2, 1]


def test_drafts_behind_a_stop_token_count_as_neither() -> None:
    stats = Stats(chain_len=5)
    stats.add_round(drafted=5, accepted=2, emitted=2)
    assert (stats.reached, stats.accepted_at, stats.accepted) == ([1, 1], [1, 1], 2)


def test_nothing_is_divided_by_zero() -> None:
    stats = Stats(chain_len=4)
    assert (stats.tau, stats.tokens_per_second, stats.acceptance_by_position) == (None, None, [])
