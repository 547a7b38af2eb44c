"""A drafter never drafts after rows that it has not observed, and all other rows are reused."""

import random
from collections.abc import Sequence

import pytest

from eagle_aot.runtime_runner.decode.shape import ChainLen
from eagle_aot.runtime_runner.engine import Engine
from support.runner.engines import Requests, adaptive_schedule_over, request_of, rounds_over
from support.runner.following import Followed, Following
from support.runner.toy import VOCAB, plain_text

SEED, LENGTH = 7, 6
SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 13
"""`prefill` runs 128 of it, as of all texts here that begin so and have no 160 tokens."""
PLAIN, DRAFTED = 0, 4


class FollowedRequests(Requests):
    """Requests to an engine whose drafter checks what it has observed."""

    def __init__(
        self, sequences: int, pattern: Sequence[bool] = (True, False), price: float = 1.0
    ) -> None:
        """`price` is that of rounds with drafts, in plain rounds, for automatic drafts."""
        target = Followed(SEED, 32, 9, sequences=sequences)
        self.drafter = Following(target, pattern)
        rounds = rounds_over(target, self.drafter)
        super().__init__(Engine(adaptive_schedule_over(rounds, self.drafter, price)))

    def add_prompt(self, prompt: Sequence[int], chain_len: ChainLen, length: int = LENGTH) -> int:
        return self.add(request_of(prompt, length, chain_len, reuse=True))

    def answered(
        self, prompt: Sequence[int], chain_len: ChainLen, length: int = LENGTH
    ) -> list[int]:
        """Return a prompt with its answer."""
        number = self.add_prompt(prompt, chain_len, length)
        self.finish()
        assert self.tokens[number] == plain_text(prompt, SEED, len(self.tokens[number]))
        return self.text(number)


def test_drafts_after_a_plain_text_run_its_rows_again() -> None:
    served = FollowedRequests(1)
    drafted = served.answered([*served.answered(SYSTEM, PLAIN), 1], DRAFTED)
    again = served.answered([*drafted, 2], DRAFTED)
    served.answered([*again, 3], PLAIN)
    assert [*served.reused.values()] == [0, 0, len(drafted) - 1, len(again) - 1]


def test_rows_observed_before_a_plain_continuation_are_reused() -> None:
    served = FollowedRequests(1)
    drafted = served.answered(SYSTEM, DRAFTED)
    middle = served.answered([*drafted, 1], PLAIN)
    served.answered([*served.answered([*middle, 2], PLAIN), 3], DRAFTED)
    assert [*served.reused.values()] == [0, len(drafted) - 1, len(middle) - 1, len(drafted) - 1]


def test_rows_are_copied_from_a_slot_that_the_drafter_observed() -> None:
    served = FollowedRequests(3)
    plain = served.answered([*SYSTEM, 1], PLAIN)
    served.answered([*SYSTEM, 2], DRAFTED)
    served.answered([*plain, 4], DRAFTED)
    served.answered([*plain, 5], PLAIN)
    assert [*served.reused.values()] == [0, 0, len(SYSTEM) - 1, len(plain) - 1]


@pytest.mark.parametrize(("first_len", "second_len"), [(PLAIN, DRAFTED), (DRAFTED, PLAIN)])
def test_a_request_waits_only_for_rows_that_its_drafter_can_use(
    first_len: int, second_len: int
) -> None:
    served = FollowedRequests(2)
    first = served.add_prompt([*SYSTEM, 1], first_len)
    served.step()  # a chunk
    second = served.add_prompt([*SYSTEM, 2], second_len)
    served.finish()
    shared = (len(SYSTEM) - 1) * (not second_len)
    assert served.reused == {first: 0, second: shared}


def test_rows_that_automatic_drafts_skipped_are_run_again() -> None:
    """The text ends in plain rounds, which the drafter has not observed."""
    served = FollowedRequests(1, [False], price=2.0)
    text = served.answered(SYSTEM, "auto", 25)
    served.answered([*text, 1], DRAFTED)
    assert len(SYSTEM) <= served.reused[1] < len(text) - 1


@pytest.mark.parametrize("sequences", [1, 3])
def test_no_order_of_texts_makes_it_draft_after_rows_it_has_not_observed(sequences: int) -> None:
    rng = random.Random(sequences)
    served, texts = FollowedRequests(sequences), [SYSTEM]
    for _ in range(60):
        text = rng.choice(texts)
        prompt = [*text[: rng.randrange(1, len(text) + 1)], *rng.choices(range(VOCAB), k=3)]
        number = served.add_prompt(prompt, rng.choice([PLAIN, 1, DRAFTED]), rng.randrange(1, 20))
        for _ in range(rng.randrange(12)):
            served.step()
        texts.append([*prompt, *served.tokens[number]])
    served.finish()
    for number, tokens in served.tokens.items():
        assert tokens == plain_text(served.prompts[number], SEED, len(tokens))
    assert served.drafter.proposals and sum(rows > 0 for rows in served.reused.values()) > 10
