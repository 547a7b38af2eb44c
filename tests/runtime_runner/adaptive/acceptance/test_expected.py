"""Tokens that rounds are expected to give, against texts whose chances are known."""

import pytest

from eagle_aot.runtime_runner.adaptive.acceptance.expected import ExpectedTokens
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN, TREES
from eagle_aot.runtime_runner.decode.next_token_probs import WIDTH, NextTokenProbs
from eagle_aot.runtime_runner.decode.round import Outcome
from eagle_aot.runtime_runner.decode.shape import Shape
from support.runner.simulated_text import accepted_of, ranked_drafts, width

CHAIN, TREE = Shape.chain(4), TREES[1]
RATES = [0.6, 0.15, 0.1, 0.05]
"""Of each rank, at any depth."""


def played(shape: Shape, ranks: list[int], before: NextTokenProbs | None = None) -> Played:
    """A round of a text in which the right drafts have these ranks."""
    accepted = accepted_of(shape, ranks)
    tokens = [ranks[0], *[0] * accepted]
    outcome = Outcome(accepted, tokens)
    if not shape.is_chain:
        offered_ranks = [*(2 ** width(shape, depth) - 1 for depth in range(shape.depth)), 0]
        outcome = outcome._replace(ranks=[0, *ranks[:accepted]], offered_ranks=offered_ranks)
    return Played.of(outcome, tokens, before)


def texts(rounds: int) -> list[list[int]]:
    return [list(ranks) for ranks in ranked_drafts(lambda _: [RATES] * 7, rounds, 3)]


def tokens(expected: ExpectedTokens, shape: Shape) -> float:
    return expected.of([shape])[shape].tokens


def test_chains_are_expected_to_go_on_as_they_did() -> None:
    expected = ExpectedTokens()
    for ranks in texts(400):
        expected.add(CHAIN, played(CHAIN, ranks))
    found = expected.of([PLAIN, Shape.chain(1), CHAIN])
    assert found[PLAIN].tokens == 1
    assert found[Shape.chain(1)].tokens == pytest.approx(1.6, abs=0.15)
    assert found[CHAIN].tokens == pytest.approx(sum(0.6**k for k in range(5)), abs=0.4)


def test_a_tree_that_was_not_played_is_known_by_what_the_head_expects() -> None:
    """Who tells the truth here: beside a draft that is wrong, others are right."""
    sure, open_ = ExpectedTokens(), ExpectedTokens()
    for ranks in texts(400):
        expected_ranks = NextTokenProbs(range(WIDTH), [*RATES, 0.02, 0.01, 0.005, 0.005])
        only_first = NextTokenProbs(range(WIDTH), [0.6, *[0.001] * (WIDTH - 1)])
        open_.add(CHAIN, played(CHAIN, ranks, expected_ranks))
        ranks = [0 if rank == 0 else WIDTH for rank in ranks]
        sure.add(CHAIN, played(CHAIN, ranks, only_first))
    true = sum(0.9**k for k in range(5))  # that is about as much as it may be
    assert tokens(sure, TREE) < 1.15 * tokens(sure, CHAIN)
    assert 1.25 * tokens(open_, CHAIN) < tokens(open_, TREE) < 1.1 * true


def test_a_trees_own_rounds_say_more() -> None:
    expected, rounds, found = ExpectedTokens(), texts(600), []
    for ranks in rounds:
        expected.add(TREE, played(TREE, ranks))
        found.append(tokens(expected, TREE))
    true = sum(accepted_of(TREE, ranks) + 1 for ranks in rounds) / len(rounds)
    assert found[-1] == pytest.approx(true, rel=0.1)
    assert sum(found[100:]) / 500 == pytest.approx(true, rel=0.05)
    chain = sum(accepted_of(CHAIN, ranks) + 1 for ranks in rounds) / len(rounds)
    assert tokens(expected, CHAIN) == pytest.approx(chain, rel=0.2)


def test_a_tree_may_be_without_the_chains_drafts() -> None:
    """Of the likeliest drafts, all of which are right, there are two in a row."""
    expected = ExpectedTokens()
    for _ in range(400):
        expected.add(TREE, Played(2, 3, ranks=(0, 0, 0, 0, 0), offered_ranks=(0b11, 0b11, 0, 0, 0)))
    assert tokens(expected, TREE) == pytest.approx(3, abs=0.3)
    assert tokens(expected, CHAIN) > 4.5


def test_what_is_known_of_the_next_token_goes_before_what_is_usual() -> None:
    expected = ExpectedTokens()
    for ranks in texts(100):
        expected.add(CHAIN, played(CHAIN, ranks))
    certain = NextTokenProbs(range(WIDTH), [0.99, *[0.001] * (WIDTH - 1)])
    at_a_loss = NextTokenProbs(range(WIDTH), [0.05] * WIDTH)
    usual = expected.of([CHAIN, TREE])
    high, low = (
        {
            s: one.given(expected.chances(next_token_probs), s.topk).tokens
            for s, one in usual.items()
        }
        for next_token_probs in (certain, at_a_loss)
    )
    assert low[CHAIN] < usual[CHAIN].tokens < high[CHAIN]
    assert low[TREE] / low[CHAIN] > high[TREE] / high[CHAIN]


def test_behind_a_second_choice_it_goes_on_otherwise() -> None:
    """Of a text whose second choices lead nowhere."""
    expected, rounds = ExpectedTokens(), []
    for ranks in texts(3000):
        stray = next((depth for depth, rank in enumerate(ranks) if rank), len(ranks))
        rounds.append([*ranks[: stray + 1], *[WIDTH] * (len(ranks) - stray - 1)])
        expected.add(TREE, played(TREE, rounds[-1]))
    true = sum(accepted_of(TREE, ranks) + 1 for ranks in rounds) / len(rounds)
    assert tokens(expected, TREE) == pytest.approx(true, rel=0.1)
    found = expected.of([TREE])[TREE]
    assert found.behind_beside < 0.1 < found.behind_likeliest
    assert 4 * found.behind_beside < found.behind_likeliest


@pytest.mark.parametrize(
    ("accepted", "ranks", "offered_ranks", "chain"),
    [
        (2, (0, 0, 1, 0), (0b11, 0b11, 0b1, 0), (2, 1)),  # wrong where the second was right
        (2, (0, 0, 0, 0), (0b11, 0b11, 0b1, 0), (3, 2)),
        (2, (0, 0, 0, 0), (0b11, 0b11, 0b10, 0), (2, 2)),  # nothing of it is offered there
        (0, (0, 0, 0, 0), (0b11, 0b11, 0b1, 0), (1, 0)),
        (3, (0, 0, 0, 0), (0b11, 0b11, 0b1, 0), (3, 3)),
    ],
)
def test_a_tree_tells_what_its_chain_would_have_come_to(
    accepted: int, ranks: tuple[int, ...], offered_ranks: tuple[int, ...], chain: tuple[int, int]
) -> None:
    assert Played(accepted, accepted + 1, ranks, offered_ranks).chain == chain


def test_drafts_behind_a_texts_end_tell_nothing() -> None:
    """A round of three drafts, of which the text has room for two tokens."""
    outcome = Outcome(3, [5, 6, 7, 8], ranks=(0, 0, 0, 0), offered_ranks=(1, 1, 1, 0))
    cut = Played.of(outcome, [5, 6], None)
    assert (cut.accepted, cut.emitted, cut.chain) == (2, 2, (2, 2))
