"""Prompts that begin as another sequence's text: which rows are copied, and which are evicted."""

import random
from collections.abc import Sequence

import pytest

from eagle_aot.lab.invariants import check_all
from eagle_aot.runtime_runner.engine import Engine
from eagle_aot.runtime_runner.engine.sequence_pool import COPY_LEAST
from support.runner.engines import ObservedTarget, Requests, request_of, rounds_over, schedule_over
from support.runner.toy import SeeingDrafter, plain_text

SEED, LENGTH = 5, 8
SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 13
"""`prefill` runs 128 of it, as of all texts here that begin so and have no 160 tokens."""


class SharedPrompts(Requests):
    """Requests whose answers are checked when all have ended."""

    def __init__(self, sequences: int, copies: bool = True, reuse: bool = True) -> None:
        self.target = ObservedTarget(SEED, 32, sequences, copies)
        drafter = SeeingDrafter(self.target, [True, False])
        super().__init__(Engine(schedule_over(rounds_over(self.target, drafter)), reuse=reuse))

    def add_prompt(self, prompt: Sequence[int], length: int = LENGTH, *, reuse: bool = True) -> int:
        return self.add(request_of(prompt, length, reuse=reuse))

    def finish(self) -> None:
        super().finish()
        for number in self.ends:
            expected = plain_text(self.prompts[number], SEED, len(self.tokens[number]))
            assert self.tokens[number] == expected

    def answer(self, prompt: Sequence[int], length: int = LENGTH) -> int:
        number = self.add_prompt(prompt, length)
        self.finish()
        return number

    def has_token(self, number: int) -> bool:
        return bool(self.tokens[number])


def test_several_answers_to_a_prompt_compute_it_once() -> None:
    served = SharedPrompts(4)
    numbers = [served.add_prompt(SYSTEM) for _ in range(4)]
    served.finish()
    assert sorted(served.reused[n] for n in numbers) == [0, *[len(SYSTEM) - 1] * 3]
    assert served.target.rows == len(SYSTEM) + 3


@pytest.mark.parametrize("seed", range(4))
def test_a_system_prompt_is_run_once_for_requests_that_come_at_any_time(seed: int) -> None:
    for reuse in (True, False):
        served = SharedPrompts(4, reuse=reuse)
        come_and_go(served, random.Random(seed))
        assert sum(rows >= 128 for rows in served.reused.values()) == 7 * reuse
        assert served.target.rows == sum(map(len, served.prompts.values())) - sum(
            served.reused.values()
        )


def come_and_go(served: SharedPrompts, rng: random.Random) -> None:
    coming = [[*SYSTEM, *range(i, i + 5), i] for i in range(8)]
    while coming or served.engine.busy:
        if coming and rng.random() < 0.2:
            served.add_prompt(coming.pop(), rng.randint(1, 12))
        served.step()
    served.finish()


def test_no_text_sees_rows_of_others() -> None:
    """The check uses a free sequence, and overwrites its rows."""
    served = SharedPrompts(4)
    served.check = check_all
    come_and_go(served, random.Random(1))
    assert sum(served.reused.values()) > 3 * len(SYSTEM)


def test_a_chat_that_is_forked_in_its_middle_continues_both_ways() -> None:
    served = SharedPrompts(3)
    first = served.answer(SYSTEM, 20)
    middle = served.text(first)[:140]
    fork, other = served.add_prompt([*middle, 7, 7]), served.add_prompt([*middle, 8, 8])
    served.finish()
    last = served.answer([*served.text(first), 1])
    assert served.reused[fork] == served.reused[other] == len(middle) - 1
    assert served.reused[last] == len(served.text(first)) - 1


def test_rows_of_a_running_text_are_reused() -> None:
    served = SharedPrompts(2)
    first = served.add_prompt(SYSTEM, 60)
    served.step_until(lambda: len(served.tokens[first]) > 20)
    second = served.add_prompt([*served.text(first)[:140], 2])
    served.step_until(lambda: served.has_token(second))
    assert first not in served.ends, "it has ended"
    served.finish()
    assert served.reused[second] == 139


def test_a_prompt_runs_in_the_turns_of_prompts_that_wait_for_its_rows() -> None:
    """So they have its rows when they would have run them themselves."""
    served = SharedPrompts(3)
    first = served.add_prompt([*SYSTEM, 1])
    served.step()  # a chunk
    second = served.add_prompt([*SYSTEM, 2])
    third = served.add_prompt([*SYSTEM, 3])
    served.step_until(lambda: served.has_token(first))
    assert served.target.rows == len(SYSTEM) + 1 and not served.tokens[second]
    served.finish()
    assert served.reused[second] == served.reused[third] == len(SYSTEM) - 1


def test_a_short_prompt_does_not_wait_for_rows_that_it_does_not_need() -> None:
    served = SharedPrompts(2)
    long = served.add_prompt([*SYSTEM, *[1] * 300])
    served.step()
    short = served.add_prompt([*SYSTEM[:40], 2])
    served.step_until(lambda: served.has_token(short))
    assert not served.tokens[long] and served.target.rows < 4 * 32
    served.finish()


@pytest.mark.parametrize("fails", [True, False])
def test_a_prompt_that_others_wait_for_may_end_early(fails: bool) -> None:
    """Rows that it has run until then are reused, unless it failed within a chunk."""
    served = SharedPrompts(2)
    first = served.add_prompt([*SYSTEM, 1])
    served.step()
    second = served.add_prompt([*SYSTEM, 2])
    served.step()
    if fails:
        served.target.chunk_fails_at = 64
        served.step_until(lambda: first in served.failed)
        served.target.chunk_fails_at = None
    else:
        served.engine.cancel(first)
    served.finish()
    assert set(served.failed) == ({first} if fails else set())
    assert len(served.tokens[second]) == LENGTH
    assert served.reused[second] == 64 if not fails else served.reused[second] in (32, 64)


def test_the_least_recently_used_rows_are_evicted_and_a_copy_counts_as_use() -> None:
    served = SharedPrompts(3)
    old, shared, newer = [served.answer(p) for p in ([7] * 50, SYSTEM, [8] * 50)]
    forked = served.answer([*SYSTEM[:60], *[9] * 50])
    assert served.reused[forked] == 59
    assert served.target.copied == [(1, 0, 59)]
    assert served.engine.sequence_pool.free == [2, 1, 0]
    for number, in_cache in ((shared, True), (forked, True), (newer, True), (old, False)):
        text = served.text(number)
        assert served.reused[served.answer([*text, 1])] == (len(text) - 1) * in_cache


def test_a_text_continues_in_its_own_slot() -> None:
    """Also if a little of it is overwritten there, rather than evict another text."""
    served = SharedPrompts(2)
    chats = [served.answer([tone, *SYSTEM], 3) for tone in (1, 2)]
    for turn in range(3):
        for i, chat in enumerate(chats):
            text = served.text(chat)[: -1 if turn % 2 else None]
            chats[i] = served.answer([*text, turn], 3)
            assert served.reused[chats[i]] == len(text) - 1
    assert served.target.copied == []


def test_a_few_rows_are_run_rather_than_copied() -> None:
    served = SharedPrompts(2)
    served.answer(SYSTEM)
    few = served.answer([*SYSTEM[:COPY_LEAST], *[7] * 300])
    enough = served.answer([*SYSTEM[: COPY_LEAST + 1], *[8] * 300])
    assert served.reused[few] == 0
    assert served.reused[enough] == COPY_LEAST


def test_without_copies_a_slot_reuses_its_own_rows_alone() -> None:
    served = SharedPrompts(3, copies=False)
    first, second = served.add_prompt(SYSTEM), served.add_prompt([*SYSTEM, 2])
    served.finish()
    assert (served.reused[first], served.reused[second]) == (0, 0)
    assert served.reused[served.answer([*SYSTEM, 3])] >= len(SYSTEM) - 1
    assert served.target.copied == []


def test_reuse_can_be_off_for_a_request_or_an_engine() -> None:
    served, never = SharedPrompts(2), SharedPrompts(2, reuse=False)
    served.answer(SYSTEM)
    without = served.add_prompt(SYSTEM, reuse=False)
    served.finish()
    assert served.reused[without] == 0
    assert [never.reused[never.answer(SYSTEM)] for _ in range(3)] == [0, 0, 0]
