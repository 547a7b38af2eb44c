"""The choice for several texts, against rounds whose costs and drafts are known."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_aot.runtime_runner.adaptive.batch import LENGTHS, BatchChooser
from eagle_aot.runtime_runner.adaptive.played import Played
from eagle_aot.runtime_runner.adaptive.shapes import PLAIN
from eagle_aot.runtime_runner.decode.shape import Shape

ROUNDS = 600
CHAINS = [Shape.chain(k) for k in LENGTHS[1:]]


def speed(chance: float, row: float, chain_len: int) -> float:
    """Tokens of a text over time, where each draft is right with the same chance."""
    return sum(chance**k for k in range(chain_len + 1)) / (1 + row * chain_len)


def play(chooser: BatchChooser, chance: float, row: float, texts: int, seed: int) -> list[int]:
    """The chain lengths that it chose."""
    rng, chosen = random.Random(seed), []
    for _ in range(ROUNDS):
        length = chooser.choose(texts, 1.0, PLAIN, CHAINS).depth
        played = []
        for _ in range(texts):
            right = 0
            while right < length and rng.random() < chance:
                right += 1
            played.append(Played(right, right + 1))
        seconds = 0.01 * (1 + row * length) * rng.uniform(0.98, 1.02)
        chooser.observe(texts, Shape.chain(length), played, seconds)
        chosen.append(length)
    return chosen


@settings(max_examples=40, deadline=None)
@given(
    chance=st.floats(0.0, 0.95),
    row=st.floats(0.02, 1.0),
    texts=st.sampled_from([2, 4, 8]),
    seed=st.integers(0, 99),
)
def test_nearly_the_best_length_is_found(chance: float, row: float, texts: int, seed: int) -> None:
    chosen = play(BatchChooser(), chance, row, texts, seed)[ROUNDS // 3 :]
    speeds = [speed(chance, row, length) for length in chosen]
    best = max(speed(chance, row, length) for length in LENGTHS)
    assert sum(speeds) / len(speeds) > 0.9 * best


def test_no_more_than_there_is_room_for_and_no_less_than_was_asked() -> None:
    chooser = BatchChooser()
    for _ in range(50):
        shape = chooser.choose(2, 0.5, Shape.chain(3), [Shape.chain(4)])
        assert shape.depth in (3, 4)
        chooser.observe(2, shape, [Played(shape.depth, shape.depth + 1)], 0.01)


def test_drafts_are_looked_at_again_where_they_did_not_pay() -> None:
    chooser = BatchChooser()
    assert play(chooser, 0.05, 0.5, 4, 1)[-1] == 0
    chosen = play(chooser, 0.95, 0.05, 4, 2)
    assert max(chosen[-50:]) == LENGTHS[-1]
