"""What a request leaves in its sequence, in each way that it may end, and who may reuse it."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.engine import Engine
from eagle_aot.runtime_runner.engine import engine as engine_module
from eagle_aot.runtime_runner.engine.running_request import RunningRequest
from support.runner.engines import Requests, request_of, rounds_over, schedule_over
from support.runner.toy import MAX_ROWS, TAIL, VOCAB, SeeingDrafter, ToyTarget, plain_text

SEED, WINDOW = 5, 20
TREE = Shape(4, 4, 31)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7]
LENGTH = 12
FAILURE = RuntimeError("a kernel failed")


class Ring(dict[int, int]):
    """The token of each slot, and which slot was written last in each place of a ring."""

    def __init__(self, rows: Iterable[tuple[int, int]] = ()) -> None:
        self.places: dict[int, int] = {}
        self.write(rows)

    def write(self, rows: Iterable[tuple[int, int]]) -> None:
        for slot, token in rows:
            self[slot] = token

    def __setitem__(self, slot: int, token: int) -> None:
        super().__setitem__(slot, token)
        self.places[slot % (WINDOW + MAX_ROWS)] = slot

    def update(self, rows: Iterable[tuple[int, int]]) -> None:  # type: ignore[override]
        self.write(dict(rows).items())

    def check(self, slots: Iterable[int]) -> None:
        for slot in slots:
            assert self.places[slot % (WINDOW + MAX_ROWS)] == slot, "a key was overwritten"


class RingTarget(ToyTarget):
    """Has a sliding layer: each row reads the keys of a window. A forward that fails leaves
    garbage in the caches of its sequences."""

    window, rewind = WINDOW, MAX_ROWS
    fails: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, sequences: int) -> None:
        super().__init__(SEED, MAX_ROWS, 9, sequences)
        self.slots = [Ring() for _ in range(sequences)]

    def before_chunk(self, sequence: int, chunk: Chunk) -> None:
        self._fail_if_due([sequence])

    def after_chunk(self, sequence: int, chunk: Chunk) -> None:
        self.ring(sequence).check(range(max(0, chunk.start - WINDOW + 1), chunk.stop))

    def verify(self, step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        self._fail_if_due(step.sequences.tolist())
        return super().verify(step, moves)

    def copy_rows(self, source: Tensor, sequence: Tensor, count: int) -> None:
        rows, copied = self.ring(int(source)), Ring()
        copied.update((slot, rows[slot]) for slot in range(count))
        for place in {slot % (WINDOW + MAX_ROWS) for slot in range(count)}:
            copied.places[place] = rows.places[place]
        self.slots[int(sequence)] = copied

    def ring(self, sequence: int) -> Ring:
        ring = self.slots[sequence]
        assert isinstance(ring, Ring)
        return ring

    def _text(self, slots: dict[int, int], position: int, tail: list[int]) -> list[int]:
        assert isinstance(slots, Ring)
        first, last = max(0, position - WINDOW + 1), position - TAIL + 1
        slots.check([*range(first, last), *(slot for slot in tail if slot >= 0)])
        return super()._text(slots, position, tail)

    def _fail_if_due(self, sequences: Sequence[int]) -> None:
        if self.fails():
            for sequence in sequences:
                ring = self.slots[sequence]
                ring.update([(slot, (token + 1) % VOCAB) for slot, token in ring.items()])
            raise FAILURE


class Served(Requests):
    """Requests to an engine with a ring's cache."""

    def __init__(self, sequences: int) -> None:
        self.target = RingTarget(sequences)
        drafter = SeeingDrafter(self.target, [True, True, False])
        super().__init__(Engine(schedule_over(rounds_over(self.target, drafter))))
        self.engine.sequence_pool.copy_least = 1

    def check_texts(self) -> None:
        for number, tokens in self.tokens.items():
            assert tokens == plain_text(self.prompts[number], SEED, len(tokens))


def ends_at(served: Served, number: int, tokens: int) -> None:
    served.step_until(lambda: len(served.tokens[number]) >= tokens)


def stops(served: Served) -> int:
    token = plain_text(PROMPT, SEED, 6)[-1]
    return served.add(request_of(PROMPT, LENGTH, stops=frozenset([token])))


def is_cancelled_in_its_answer(served: Served) -> int:
    number = served.add(request_of(PROMPT, LENGTH))
    ends_at(served, number, 3)
    served.engine.cancel(number)
    return number


def is_cancelled_in_its_prompt(served: Served) -> int:
    """Two chunks of it have run."""
    number = served.add(request_of([*PROMPT, *[1] * 200], LENGTH))
    served.step()
    served.step()
    served.engine.cancel(number)
    return number


def fails_in_its_prompt(served: Served) -> int:
    """In the third chunk."""
    chunks = count()
    served.target.fails = lambda: next(chunks) == 2
    return served.add(request_of([*PROMPT, *[1] * 200], LENGTH))


def fails_in_a_round(served: Served) -> int:
    number = served.add(request_of(PROMPT, LENGTH))
    ends_at(served, number, 3)
    failures = iter([True])
    served.target.fails = lambda: next(failures, False)
    return number


def has_a_callback_that_raises(served: Served) -> int:
    request = request_of(PROMPT, LENGTH)
    tokens = count()

    def is_stop(token: int) -> bool:
        if next(tokens) == 5:
            raise KeyError("a bug")
        return False

    return served.add(replace(request, limits=replace(request.limits, is_stop=is_stop)))


def ends_after_a_chain(served: Served) -> int:
    return served.add(request_of(PROMPT, LENGTH))


def ends_after_a_tree(served: Served) -> int:
    return served.add(request_of(PROMPT, LENGTH, tree=TREE))


ALL = 10**6
WAYS = {
    ends_after_a_chain: 0,
    ends_after_a_tree: TREE.depth,
    stops: 0,
    is_cancelled_in_its_answer: 0,
    is_cancelled_in_its_prompt: 0,
    fails_in_its_prompt: ALL,
    fails_in_a_round: ALL,
    has_a_callback_that_raises: ALL,
}
"""Ways to leave, and how many of the last rows are lost: a tree's last path is not in its place."""


@pytest.mark.parametrize(("leave", "lost"), WAYS.items())
@pytest.mark.parametrize("sequences", [1, 2])
def test_rows_of_requests_that_did_not_fail_are_reused(
    leave: Callable[[Served], int], lost: int, sequences: int
) -> None:
    """A client that disconnects cancels its request. Nothing is preempted."""
    served = Served(sequences)
    first = leave(served)
    served.finish()
    assert (first in served.failed) == (lost == ALL)
    text = served.text(first)
    second = served.add(request_of([*text[:129], *[VOCAB - 1] * 3], LENGTH, reuse=True))
    served.finish()
    served.check_texts()
    rows = min(len(text), 129) - 1
    assert max(rows - lost, 0) <= served.reused[second] <= (rows if lost < ALL else 0)


@pytest.mark.parametrize("seed", range(3))
def test_no_key_that_a_ring_has_lost_is_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are cut anywhere and continued after chains and trees, whose nodes overwrite slots far
    after a text's end, also of sequences from which rows are copied."""
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=count().__next__))
    rng, served = random.Random(seed), Served(2)
    numbers = [served.add(request_of(PROMPT, LENGTH))]
    for _ in range(60):
        text = served.text(rng.choice(numbers[-3:]))
        prompt = [*text[: rng.randint(1, min(len(text), 100))], *rng.choices(range(VOCAB), k=2)]
        tree = rng.choice([None, TREE, Shape(2, 2, 5)])
        length = rng.randint(1, 30)
        numbers.append(served.add(request_of(prompt, length, 3, tree=tree, reuse=True)))
        if rng.random() < 0.3:
            served.engine.cancel(rng.choice(numbers))
        if rng.random() < 0.7:
            served.finish()
    served.finish()
    served.check_texts()
    assert sum(rows > 0 for rows in served.reused.values()) > 20


def test_slots_of_a_chunks_padding_are_written_too() -> None:
    """It follows the images of a short prompt, in slots after those of the prompt."""
    request = RunningRequest(0, request_of([1] * 5, 3))
    chunks = iter([Chunk(0, 3, False, padding=7), Chunk(3, 5, False, padding=4)])
    run_chunk = partial(torch.zeros, 1, 1)
    for left, chunk in zip((2, 0), chunks, strict=True):
        request.prefill = cast(
            Any, SimpleNamespace(next_chunk=chunk, run_chunk=run_chunk, left=left)
        )
        request.run_chunk()
    pool = Served(1).engine.sequence_pool
    assert request.contents().scratch_rows == 7
    assert pool.after(0, request.contents()).written == 5 + TAIL + 7


SECRET = (11, 2, 16, 7, 4, 13)
"""Six words of another user's prompt."""
PUBLIC = [1, 2, 3]


def guessed_words(served: Served, victim: str, attacker: str, *, running: bool) -> int:
    """Guess one word after the other by how many rows of a prompt were cached. Returns how many
    are found if all before are known."""
    secret = replace(request_of([*PUBLIC, *SECRET], 1, reuse=True), cache_salt=victim)
    found = 0
    if running:
        limits = replace(secret.limits, max_new_tokens=10**6)
        number = served.add(replace(secret, limits=limits))
        ends_at(served, number, 1)
    for known, word in enumerate(SECRET):
        rows: dict[int, int] = {}
        for guess in (word, *((word + i) % VOCAB for i in (1, 5, 9))):
            if not running:
                served.add(secret)
                served.finish()
            prompt = [*PUBLIC, *SECRET[:known], guess, 0, 0]
            request = replace(request_of(prompt, 1, reuse=True), cache_salt=attacker)
            attack = served.add(request)
            served.step_until(lambda number=attack: number in served.ends)  # type: ignore[misc]
            rows[guess] = served.reused[attack]
        found += rows[word] > max(rows[guess] for guess in rows if guess != word)
    return found


@pytest.mark.parametrize("running", [True, False])
def test_cached_rows_reveal_no_prompt_of_another_salt(running: bool) -> None:
    guessed = {
        salts: guessed_words(Served(3), *salts, running=running)
        for salts in [("a", "a"), ("", ""), ("a", "b"), ("a", ""), ("", "b")]
    }
    assert guessed == {("a", "a"): 6, ("", ""): 6, ("a", "b"): 0, ("a", ""): 0, ("", "b"): 0}
