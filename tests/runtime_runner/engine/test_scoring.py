"""Requests that want to know of their prompts, over a toy model: beside others, and alone."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from eagle_aot.common.errors import PromptError
from eagle_aot.lab.invariants import check_all
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.engine import (
    Engine,
    Event,
    Failed,
    Finished,
    Request,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.images.prompt_image import PlacedImage, PromptImage
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams
from support.runner.chosen import fixed_schedule_over, request_of
from support.runner.sampled import prompt_logprobs
from support.runner.toy import MAX_ROWS, TAIL, SeeingDrafter, ToyTarget, plain_text

SEED, ROOM, MOST = 11, 8, 3
LONG = [3, 1, 4, 1, 5, 9, 2, 6] * 25
"""Of four windows, and seven chunks."""


class Windows(ToyTarget):
    """Counts windows, and the rows of prompts that are run; fails at a window from some position
    on."""

    fails_from: int | None = None

    def __init__(self, sequences: int) -> None:
        super().__init__(SEED, 32, 9, sequences=sequences)
        self.windows, self.read = 0, 0

    def run_prompt(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, chunk: Chunk
    ) -> Forward:
        self.read += len(chunk)
        return super().run_prompt(tokens, input_pos, sequence, chunk)

    def verify(self, step: StepRows, moves: Tensor) -> Forward:
        first, rows = int(step.positions[0, 0]), step.tokens.shape[1]
        if first == self.fails_from and rows > TAIL:
            raise RuntimeError("a kernel failed")
        self.windows += rows > TAIL
        return super().verify(step, moves)


class Told:
    """An engine over a toy, whose requests' events are kept; all is checked behind every step."""

    def __init__(self, sequences: int = 2) -> None:
        self.target = Windows(sequences)
        running = BatchState(range(sequences), TAIL, "cpu")
        drafter = SeeingDrafter(self.target, [True, False])
        rounds = Rounds(self.target, drafter, running, MAX_ROWS, None)
        schedule = fixed_schedule_over(rounds)
        self.engine = Engine(schedule)
        self.engine.cache_slots.copy_least = 1
        self.events: list[Event] = []

    def add(
        self,
        prompt: Sequence[int],
        room: int = ROOM,
        most: int | None = MOST,
        *,
        reuse: bool = True,
    ) -> int:
        return self.engine.add(asking(prompt, room, most, reuse=reuse))

    def step(self) -> None:
        self.events += self.engine.step()
        read = self.target.read
        check_all(self.engine)
        self.target.read = read

    def all(self) -> None:
        while self.engine.busy:
            self.step()

    def scored(self, number: int) -> list[TokenLogprobs]:
        parts = [e.logprobs for e in self.events if isinstance(e, Scored) and e.request == number]
        return [one for part in parts for one in part]

    def tokens(self, number: int) -> list[int]:
        parts = [e.tokens for e in self.events if isinstance(e, Tokens) and e.request == number]
        return [token for part in parts for token in part]

    def end(self, number: int) -> Finished:
        (end,) = (e for e in self.events if isinstance(e, Finished) and e.request == number)
        return end


def asking(
    prompt: Sequence[int], room: int = ROOM, most: int | None = MOST, *, reuse: bool = True
) -> Request:
    return request_of(prompt, room, 4, reuse=reuse, sampling=SamplingParams(prompt_logprobs=most))


def check(told: Sequence[TokenLogprobs], prompt: Sequence[int]) -> None:
    """Against plain numbers."""
    expected = prompt_logprobs(prompt, SEED, MOST)
    assert [(one.id, [token for token, _ in one.top]) for one in told] == [
        (token, [likely for likely, _ in top]) for token, _, top in expected
    ]
    assert told[0].logprob is None
    found = [one.logprob for one in told[1:]]
    assert found == pytest.approx([logprob for _, logprob, _ in expected[1:]], abs=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 64, 65, 66, 129])
def test_windows_of_any_size_tell_the_same(rows: int, length: int) -> None:
    """And no more forwards are run than there are rows for."""
    told, prompt = Told(), LONG[:length]
    told.target.max_rows = rows
    number = told.add(prompt, room=0)
    told.all()
    check(told.scored(number), prompt)
    end = told.end(number)
    assert (end.reason, end.reused, told.tokens(number)) == ("length", 0, [])
    assert end.stats.target_forwards == told.target.forwards == -(-(length - 1) // rows)


def test_nobody_goes_on_from_a_prompt_that_is_scored() -> None:
    """Which goes on from nobody, and takes no other's rows away for it; behind that both do."""
    told = Told(3)
    first = told.add(LONG, most=None)
    told.all()
    scored = told.add(LONG)
    told.step()
    (text,) = told.engine.prompts
    assert text.scoring is not None and text.sequence != told.engine.cache_slots.free[-1]
    other = told.add([*LONG, 1], most=None)
    while text.scoring is not None:
        assert text.sequence is not None
        assert (text.rows, told.engine.cache_slots.cached(text.sequence).rows) == (0, 0)
        told.step()
    told.all()
    assert [told.end(n).reused for n in (first, scored, other)] == [0, len(LONG) - 1, len(LONG) - 1]
    assert told.target.read == len(LONG) + 1 + 2
    check(told.scored(scored), LONG)
    assert told.tokens(scored) == told.tokens(first) == plain_text(LONG, SEED, ROOM)
    assert told.tokens(other) == plain_text([*LONG, 1], SEED, ROOM)


@pytest.mark.parametrize("steps", range(1, 10))
def test_one_that_is_cancelled_leaves_what_it_has_run(steps: int) -> None:
    """Of the prompt itself: of what scoring has stored nothing."""
    told = Told(1)
    number = told.add(LONG)
    for _ in range(steps):
        told.step()
    told.engine.cancel(number)
    again = told.add(LONG)
    told.all()
    assert told.end(number).reason == "cancelled"
    assert len(told.scored(number)) == min(64 * steps + 1, len(LONG))
    assert told.end(again).reused == 0, "it was scored again, from the beginning"
    check(told.scored(again), LONG)
    after = told.add([*LONG, 7], most=None)
    told.all()
    assert told.tokens(after) == plain_text([*LONG, 7], SEED, ROOM)
    assert told.tokens(again) == plain_text(LONG, SEED, ROOM)


def test_a_window_that_fails_ends_its_text_alone() -> None:
    told = Told(2)
    beside = told.add([1, 2], room=40, most=None)
    told.target.fails_from = 64
    failing = told.add(LONG)
    told.all()
    (failed,) = (e for e in told.events if isinstance(e, Failed))
    assert (failed.request, failed.error) == (failing, "a kernel failed")
    assert told.tokens(beside) == plain_text([1, 2], SEED, 40)
    assert len(told.scored(failing)) == 65 and told.tokens(failing) == []
    told.target.fails_from = None
    again = told.add(LONG)
    told.all()
    check(told.scored(again), LONG)
    assert told.tokens(again) == plain_text(LONG, SEED, ROOM)


def test_running_texts_go_on_beside_windows() -> None:
    told = Told(2)
    first = told.add([1], room=200, most=None)
    told.step()
    long = told.add(LONG * 3)
    at_windows = []
    while not told.tokens(long):
        before = told.target.windows
        told.step()
        at_windows += [len(told.tokens(first))] * (told.target.windows - before)
    assert len(at_windows) == 10, "600 tokens"
    assert at_windows[-1] > at_windows[0] + 4


def test_who_does_not_ask_pays_nothing() -> None:
    told = Told()
    number = told.add(LONG, most=None)
    told.all()
    assert (told.target.windows, told.scored(number)) == (0, [])


def test_a_prompt_with_images_has_no_logprobs() -> None:
    image = PlacedImage(PromptImage.of_rows(torch.ones(2, 4), 4), 1)
    asked, limits = SamplingParams(prompt_logprobs=MOST), asking([1]).limits
    with pytest.raises(PromptError, match="a prompt with images has none") as refused:
        Request(prompt=(1, 2, 2), limits=limits, chain_len=0, sampling=asked, images=(image,))
    assert "\n" not in str(refused.value)
