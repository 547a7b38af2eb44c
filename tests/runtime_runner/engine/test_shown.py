"""Rows that a drafter was not shown: who goes on from them, and that it drafts behind none."""

import random
from collections.abc import Sequence

import pytest

from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.shape import ChainLen
from eagle_aot.runtime_runner.engine import Engine
from eagle_aot.runtime_runner.engine.rounds import Rounds
from support.runner.chosen import request_of, schedule_over
from support.runner.following import Followed, Following
from support.runner.requests import Requests
from support.runner.toy import MAX_ROWS, TAIL, VOCAB, plain_text

SEED, ROOM = 7, 6
SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 13
"""Of which `prefill` runs 128, as of all texts here that begin so and have no 160 tokens."""
PLAIN, DRAFTED = 0, 4


class PendingRequests(Requests):
    """By an engine whose drafter looks at what it was shown."""

    def __init__(
        self, sequences: int, pattern: Sequence[bool] = (True, False), price: float = 1.0
    ) -> None:
        """`price` is that of rounds with drafts, in plain ones, as "auto" has it."""
        self.target = Followed(SEED, 32, 9, sequences=sequences)
        running = BatchState(range(sequences), TAIL, "cpu")
        self.drafter = Following(self.target, pattern)
        rounds = Rounds(self.target, self.drafter, running, MAX_ROWS, None)
        super().__init__(Engine(schedule_over(rounds, price)))

    def add(self, prompt: Sequence[int], chain_len: ChainLen, room: int = ROOM) -> int:
        return self.ask(request_of(prompt, room, chain_len, reuse=True))

    def text(self, prompt: Sequence[int], chain_len: ChainLen, room: int = ROOM) -> list[int]:
        """Answer included."""
        number = self.add(prompt, chain_len, room)
        self.finish()
        found = self.tokens[number]
        assert found == plain_text(prompt, SEED, len(found))
        return [*prompt, *found]

    @property
    def kept(self) -> list[int]:
        """Of each request that has ended, in their order, the rows that were not run."""
        return [self.ends[number].reused for number in sorted(self.ends)]


def test_a_drafted_text_runs_the_rows_of_a_plain_one_again() -> None:
    served = PendingRequests(1)
    plain = served.text(SYSTEM, PLAIN)
    drafted = served.text([*plain, 1], DRAFTED)
    again = served.text([*drafted, 2], DRAFTED)
    served.text([*again, 3], PLAIN)
    assert served.kept == [0, 0, len(drafted) - 1, len(again) - 1]


def test_and_what_it_was_shown_before_a_plain_one_went_on_is_kept() -> None:
    served = PendingRequests(1)
    drafted = served.text(SYSTEM, DRAFTED)
    middle = served.text([*drafted, 1], PLAIN)
    last = served.text([*middle, 2], PLAIN)
    served.text([*last, 3], DRAFTED)
    assert served.kept == [0, len(drafted) - 1, len(middle) - 1, len(drafted) - 1]


def test_rows_are_copied_from_whoever_was_shown_them() -> None:
    served = PendingRequests(3)
    plain = served.text([*SYSTEM, 1], PLAIN)
    served.text([*SYSTEM, 2], DRAFTED)
    served.text([*plain, 4], DRAFTED)
    served.text([*plain, 5], PLAIN)
    assert served.kept == [0, 0, len(SYSTEM) - 1, len(plain) - 1]


@pytest.mark.parametrize(("ahead", "behind"), [(PLAIN, DRAFTED), (DRAFTED, PLAIN)])
def test_nobody_waits_for_rows_that_are_of_no_use(ahead: int, behind: int) -> None:
    served = PendingRequests(2)
    first = served.add([*SYSTEM, 1], ahead)
    served.step()  # a chunk
    second = served.add([*SYSTEM, 2], behind)
    served.finish()
    assert (served.ends[first].reused, served.ends[second].reused) == (
        0,
        (len(SYSTEM) - 1) * (not behind),
    )


def test_what_auto_has_left_out_is_run_again() -> None:
    """A text ends while nothing is drafted for it."""
    served = PendingRequests(1, [False], price=2.0)
    text = served.text(SYSTEM, "auto", 25)
    served.text([*text, 1], DRAFTED)
    assert len(SYSTEM) <= served.kept[1] < len(text) - 1


@pytest.mark.parametrize("sequences", [1, 3])
def test_no_order_of_texts_lets_it_draft_behind_what_it_was_not_shown(sequences: int) -> None:
    rng = random.Random(sequences)
    served, texts = PendingRequests(sequences), [SYSTEM]
    for _ in range(60):
        begun = rng.choice(texts)
        prompt = [*begun[: rng.randrange(1, len(begun) + 1)], *rng.choices(range(VOCAB), k=3)]
        number = served.add(prompt, rng.choice([PLAIN, 1, DRAFTED]), rng.randrange(1, 20))
        for _ in range(rng.randrange(12)):
            served.step()
        texts.append([*prompt, *served.tokens[number]])
    served.finish()
    for number, found in served.tokens.items():
        assert found == plain_text(served.prompts[number], SEED, len(found))
    assert served.drafter.proposals and sum(kept > 0 for kept in served.kept) > 10
