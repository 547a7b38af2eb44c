"""Prompts that begin as another sequence's text: who is copied from, and who is evicted."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from torch import Tensor

from eagle_aot.lab.invariants import check_all
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.engine import Engine, Failed, Finished, Tokens
from eagle_aot.runtime_runner.engine.cache_slots import COPY_LEAST
from eagle_aot.runtime_runner.engine.rounds import Rounds
from support.runner.chosen import fixed_schedule_over, request_of
from support.runner.toy import MAX_ROWS, TAIL, SeeingDrafter, ToyTarget, plain_text

SEED, ROOM = 5, 8
SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 13
"""Of which `prefill` runs 128, as of all texts here that begin so and have no 160 tokens."""


class Counting(ToyTarget):
    """Counts the rows of prompts, and the copies; fails at a position of a prompt."""

    rows = 0
    fails_at: int | None = None

    def __init__(self, sequences: int, copies: bool = True) -> None:
        super().__init__(SEED, 32, 9, sequences=sequences)
        self.copies = copies
        self.copied: list[tuple[int, int, int]] = []

    def run_prompt(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, chunk: Chunk
    ) -> Forward:
        if chunk.start == self.fails_at:
            self.fails_at = None
            raise RuntimeError("a kernel failed")
        self.rows += len(chunk)
        return super().run_prompt(tokens, input_pos, sequence, chunk)

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        super().copy_rows(source, sequence, count)
        self.copied.append((int(source), int(sequence), count))


@dataclass
class PendingRequests:
    """An engine over a toy, and what its requests came to."""

    sequences: int = 4
    copies: bool = True
    reuse: bool = True
    kept: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    prompts: dict[int, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = Counting(self.sequences, self.copies)
        running = BatchState(range(self.sequences), TAIL, "cpu")
        drafter = SeeingDrafter(self.target, [True, False])
        rounds = Rounds(self.target, drafter, running, MAX_ROWS, None)
        schedule = fixed_schedule_over(rounds)
        self.engine = Engine(schedule, reuse=self.reuse)

    def add(self, prompt: Sequence[int], room: int = ROOM, *, reuse: bool = True) -> int:
        number = self.engine.add(request_of(prompt, room, reuse=reuse))
        self.prompts[number], self.tokens[number] = prompt, []
        return number

    def step(self) -> None:
        for event in self.engine.step():
            if isinstance(event, Tokens):
                self.tokens[event.request] += event.tokens
            elif isinstance(event, Finished):
                self.kept[event.request] = event.reused
            elif isinstance(event, Failed):
                self.failed.add(event.request)

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.engine.busy
            self.step()

    def all(self) -> None:
        """Serve all, each of whom has its own text."""
        while self.engine.busy:
            self.step()
        for number in self.kept:
            expected = plain_text(self.prompts[number], SEED, len(self.tokens[number]))
            assert self.tokens[number] == expected

    def ask(self, prompt: Sequence[int], room: int = ROOM) -> int:
        number = self.add(prompt, room)
        self.all()
        return number

    def text(self, number: int) -> list[int]:
        return [*self.prompts[number], *self.tokens[number]]


def test_several_answers_to_a_prompt_compute_it_once() -> None:
    served = PendingRequests(4)
    numbers = [served.add(SYSTEM) for _ in range(4)]
    served.all()
    assert sorted(served.kept[n] for n in numbers) == [0, *[len(SYSTEM) - 1] * 3]
    assert served.target.rows == len(SYSTEM) + 3


@pytest.mark.parametrize("seed", range(4))
def test_requests_with_a_system_prompt_that_come_at_any_time(seed: int) -> None:
    for reuse in (True, False):
        served = PendingRequests(4, reuse=reuse)
        come_and_go(served, random.Random(seed))
        assert sum(kept >= 128 for kept in served.kept.values()) == 7 * reuse
        assert served.target.rows == sum(map(len, served.prompts.values())) - sum(
            served.kept.values()
        )


def come_and_go(served: PendingRequests, rng: random.Random) -> None:
    coming = [[*SYSTEM, *range(i, i + 5), i] for i in range(8)]
    while coming or served.engine.busy:
        if coming and rng.random() < 0.2:
            served.add(coming.pop(), rng.randint(1, 12))
        served.step()
    served.all()


def test_nobody_sees_what_is_not_theirs_meanwhile() -> None:
    """The check takes a free sequence, and what that held."""
    served = PendingRequests(4)
    served.engine.after_step = check_all
    come_and_go(served, random.Random(1))
    assert sum(served.kept.values()) > 3 * len(SYSTEM)


def test_a_chat_that_is_forked_in_its_middle_goes_on_both_ways() -> None:
    served = PendingRequests(3)
    first = served.ask(SYSTEM, 20)
    middle = served.text(first)[:140]
    one, other = served.add([*middle, 7, 7]), served.add([*middle, 8, 8])
    served.all()
    last = served.ask([*served.text(first), 1])
    assert served.kept[one] == served.kept[other] == len(middle) - 1
    assert served.kept[last] == len(served.text(first)) - 1


def test_what_runs_is_gone_on_from_while_it_runs() -> None:
    served = PendingRequests(2)
    first = served.add(SYSTEM, 60)
    served.until(lambda: len(served.tokens[first]) > 20)
    second = served.add([*served.text(first)[:140], 2])
    served.until(lambda: bool(served.tokens[second]))
    assert first not in served.kept, "it has ended"
    served.all()
    assert served.kept[second] == 139


def test_a_prompt_that_is_ahead_goes_on_in_the_turns_of_those_behind_it() -> None:
    """So they have its rows as soon as if each had run them itself."""
    served = PendingRequests(3)
    first = served.add([*SYSTEM, 1])
    served.step()  # a chunk
    second = served.add([*SYSTEM, 2])
    third = served.add([*SYSTEM, 3])
    served.until(lambda: bool(served.tokens[first]))
    assert served.target.rows == len(SYSTEM) + 1 and not served.tokens[second]
    served.all()
    assert served.kept[second] == served.kept[third] == len(SYSTEM) - 1


def test_a_short_prompt_does_not_wait_for_what_it_does_not_need() -> None:
    served = PendingRequests(2)
    long = served.add([*SYSTEM, *[1] * 300])
    served.step()
    short = served.add([*SYSTEM[:40], 2])
    served.until(lambda: bool(served.tokens[short]))
    assert not served.tokens[long] and served.target.rows < 4 * 32
    served.all()


@pytest.mark.parametrize("fails", [True, False])
def test_who_was_waited_for_may_go(fails: bool) -> None:
    """What it has run until then is kept, unless that is not known."""
    served = PendingRequests(2)
    first = served.add([*SYSTEM, 1])
    served.step()
    second = served.add([*SYSTEM, 2])
    served.step()
    if fails:
        served.target.fails_at = 64
    else:
        served.engine.cancel(first)
    served.all()
    assert served.failed == ({first} if fails else set())
    assert len(served.tokens[second]) == ROOM
    assert served.kept[second] == 64 if not fails else served.kept[second] in (32, 64)


def test_the_least_recently_used_is_evicted_and_a_source_is_used() -> None:
    served = PendingRequests(3)
    old, shared, newer = [served.ask(p) for p in ([7] * 50, SYSTEM, [8] * 50)]
    turned_off = served.ask([*SYSTEM[:60], *[9] * 50])
    assert served.kept[turned_off] == 59
    assert served.target.copied == [(1, 0, 59)]
    assert served.engine.cache_slots.free == [2, 1, 0]
    for number, held in ((shared, True), (turned_off, True), (newer, True), (old, False)):
        text = served.text(number)
        assert served.kept[served.ask([*text, 1])] == (len(text) - 1) * held


def test_a_text_goes_on_where_it_is() -> None:
    """As does one of which little is overwritten there, before another is given up."""
    served = PendingRequests(2)
    chats = [served.ask([tone, *SYSTEM], 3) for tone in (1, 2)]
    for turn in range(3):
        for i, chat in enumerate(chats):
            behind = served.text(chat)[: -1 if turn % 2 else None]
            chats[i] = served.ask([*behind, turn], 3)
            assert served.kept[chats[i]] == len(behind) - 1
    assert served.target.copied == []


def test_a_few_rows_are_run() -> None:
    served = PendingRequests(2)
    served.ask(SYSTEM)
    few = served.ask([*SYSTEM[:COPY_LEAST], *[7] * 300])
    enough = served.ask([*SYSTEM[: COPY_LEAST + 1], *[8] * 300])
    assert served.kept[few] == 0
    assert served.kept[enough] == COPY_LEAST


def test_an_artifact_that_cannot_copy_goes_on_from_its_own_rows_alone() -> None:
    served = PendingRequests(3, copies=False)
    first, second = served.add(SYSTEM), served.add([*SYSTEM, 2])
    served.all()
    assert (served.kept[first], served.kept[second]) == (0, 0)
    assert served.kept[served.ask([*SYSTEM, 3])] >= len(SYSTEM) - 1
    assert served.target.copied == []


def test_a_request_may_do_without_and_an_engine_too() -> None:
    served, never = PendingRequests(2), PendingRequests(2, reuse=False)
    served.ask(SYSTEM)
    without = served.add(SYSTEM, reuse=False)
    served.all()
    assert served.kept[without] == 0
    assert [never.kept[never.ask(SYSTEM)] for _ in range(3)] == [0, 0, 0]
