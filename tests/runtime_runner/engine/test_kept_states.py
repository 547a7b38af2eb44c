"""Targets with recurrent states: prompts continue where a state is kept, and nowhere else."""

import random
from collections.abc import Sequence

import pytest
from torch import Tensor

from eagle_aot.artifact.methods import KEPT_STATES
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk, plan_chunks
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.engine import Engine
from eagle_aot.runtime_runner.engine.kept_states import least_useful
from eagle_aot.runtime_runner.engine.sequence_pool import CachedPrefix
from support.runner.engines import Requests, request_of, rounds_over, schedule_over
from support.runner.toy import MAX_ROWS, TAIL, SeeingDrafter, ToyTarget, plain_text

SEED, LENGTH = 5, 6
SYSTEM = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3] * 20


class ToyStates(ToyTarget):
    """Its states have taken in a text: `taken` of each sequence, and what is kept in places. A
    chunk takes it further, and a step begins at most a tail after it."""

    has_states = True

    def __init__(self, sequences: int) -> None:
        super().__init__(SEED, MAX_ROWS, 17, sequences)
        self.taken: list[list[int]] = [[] for _ in range(sequences)]
        self.kept: dict[tuple[int, int], list[int]] = {}
        self.rows = 0

    def before_chunk(self, sequence: int, chunk: Chunk) -> None:
        self.rows += len(chunk)
        self._take(sequence, chunk.start)

    def after_chunk(self, sequence: int, chunk: Chunk) -> None:
        if not chunk.few_rows:
            self._take(sequence, chunk.stop)

    def verify(self, step: StepRows, moves: Tensor, *, largest_only: bool = False) -> Forward:
        found = super().verify(step, moves)
        for index, sequence in enumerate(step.sequences.tolist()):
            if (first := int(step.positions[index, 0])) >= 0:
                self._take(sequence, first)
        return found

    def _take(self, sequence: int, position: int) -> None:
        """Take in the tokens before a position; a text begins anew at 0."""
        text = [self.slots[sequence][slot] for slot in range(position)]
        taken = self.taken[sequence] if position else []
        assert text[: len(taken)] == taken, "a state of another text, or of a later position"
        assert len(text) - len(taken) <= max(TAIL, self.longest), "a gap"
        self.taken[sequence] = text

    def keep_state(self, sequence: int, place: int) -> None:
        assert 0 <= place < KEPT_STATES
        self.kept[sequence, place] = self.taken[sequence]

    def restore_state(self, source: int, place: int, sequence: int) -> None:
        self.taken[sequence] = self.kept[source, place]


class Served(Requests):
    """Requests whose answers are checked when all have ended."""

    def __init__(self, sequences: int, reuse: bool = True) -> None:
        self.target = ToyStates(sequences)
        rounds = rounds_over(self.target, SeeingDrafter(self.target, [True, False]))
        super().__init__(Engine(schedule_over(rounds), reuse=reuse))

    def add_prompt(self, prompt: Sequence[int], length: int = LENGTH) -> int:
        return self.add(request_of(prompt, length, reuse=True))

    def answer(self, prompt: Sequence[int], length: int = LENGTH) -> int:
        number = self.add_prompt(prompt, length)
        self.finish()
        return number

    def finish(self) -> None:
        super().finish()
        assert not self.failed
        for number, prompt in self.prompts.items():
            assert self.tokens[number] == plain_text(prompt, SEED, len(self.tokens[number]))


def test_a_conversation_continues_where_prefill_ended() -> None:
    served, text = Served(1), SYSTEM
    for turn in range(4):
        number = served.answer(text)
        before = 0 if not turn else (len(served.prompts[number - 1]) // MAX_ROWS) * MAX_ROWS
        assert served.reused[number] == before
        text = [*served.text(number), *[turn] * 90]


def test_rows_after_the_last_state_are_run_again() -> None:
    """A prompt that begins like another one, and ends in the middle of a chunk of it."""
    served = Served(2)
    served.answer(SYSTEM)
    assert served.reused[served.answer([*SYSTEM[:170], 7, 7])] == 128
    assert served.reused[served.answer([*SYSTEM[:100], *[7] * 200])] == 64
    assert served.reused[served.answer([*SYSTEM[:63], *[8] * 200])] == 0


def test_a_fork_has_a_state_of_its_own_when_its_source_is_evicted() -> None:
    served = Served(3)
    first = served.answer(SYSTEM)
    fork = served.answer([*SYSTEM[:150], *[9] * 100])
    assert served.reused[fork] == 128
    for tone in (10, 11):
        served.answer([tone] * 60)  # takes the least recently used sequences
    assert served.reused[served.answer([*served.text(fork), *[4] * 70])] > 128
    assert served.reused[served.answer(served.text(first))] == 128


def test_prompts_that_come_together_run_a_common_beginning_once() -> None:
    served = Served(4)
    numbers = [served.add_prompt([*SYSTEM, n, n]) for n in range(4)]
    served.finish()
    assert sorted(served.reused[n] for n in numbers) == [0, 192, 192, 192]
    assert served.target.rows == 4 * 202 - 3 * 192


@pytest.mark.parametrize("seed", range(6))
def test_no_token_depends_on_what_was_kept(seed: int) -> None:
    """Requests come, are cancelled and continue each other at random."""
    rng, served, reused = random.Random(seed), Served(3), 0
    texts: list[list[int]] = [SYSTEM]
    for _ in range(25):
        text = rng.choice(texts)
        prompt = [*text[: rng.randint(1, len(text))], *[rng.randrange(17)] * rng.randint(0, 150)]
        number = served.add_prompt(prompt, rng.randint(1, 20))
        for _ in range(rng.randint(0, 12)):
            if served.engine.busy:
                served.step()
        if rng.random() < 0.2:
            served.engine.cancel(number)
        texts.append(served.text(number))
    served.finish()
    reused = sum(served.reused.values())
    assert reused > 200 and served.target.rows < sum(map(len, served.prompts.values()))


def test_states_are_for_no_rows_that_would_run_again() -> None:
    """Prompts whose first chunk after a state would begin before it."""

    def plan(length: int) -> list[Chunk]:
        return plan_chunks(400, 128, 65, 16, length)

    kept = CachedPrefix(tuple(range(400)), 400, 416, states=(128, 256, 384))
    assert plan(384)[0].start < 384 and plan(256)[0].start == 256
    assert kept.match(range(400), plan, 10**6) == 256
    assert CachedPrefix(tuple(range(400)), 400, 416).match(range(400), plan, 10**6) == 399


def test_states_are_kept_with_wide_gaps_and_the_last_one() -> None:
    kept = list[int]()
    for position in range(128, 128 * 65, 128):
        if len(kept) == KEPT_STATES:
            kept.remove(least_useful(kept, position))
        kept.append(position)
    assert kept[-1] == 128 * 64
    gaps = [after - before for before, after in zip([0, *kept], kept, strict=False)]
    assert max(gaps) <= 4 * min(gaps[:-1])
