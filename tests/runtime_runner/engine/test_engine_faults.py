"""What goes wrong in one place ends those that it concerns, and the others have their texts."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_aot.lab.invariants import check_invariants
from eagle_aot.runtime_runner.decode.prompt_chunks import Chunk
from eagle_aot.runtime_runner.decode.round import BatchState
from eagle_aot.runtime_runner.decode.step import StepRows
from eagle_aot.runtime_runner.decode.target import Forward
from eagle_aot.runtime_runner.engine import (
    Engine,
    Event,
    Failed,
    Finished,
    Limits,
    Request,
    Tokens,
)
from eagle_aot.runtime_runner.engine import engine as engine_module
from eagle_aot.runtime_runner.engine.rounds import Rounds
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Generation, generate_in_order
from eagle_aot.runtime_runner.frontend.result import Result
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.chosen import fixed_schedule_over
from support.runner.toy import MAX_ROWS, TAIL, SeeingDrafter, ToyTarget, plain_text

SEED, ROOM = 11, 12
LONG = [3] * 64  # four chunks


class Faulty(ToyTarget):
    """Fails where it should."""

    most = 100
    """Sequences that there is memory for in a forward."""
    fails_from: int | None = None
    """The position of a prompt's chunk."""
    error: Exception = RuntimeError("a kernel\nfailed")

    def verify(self, step: StepRows, moves: Tensor) -> Forward:
        if len(step.sequences) > self.most:
            raise self.error
        return super().verify(step, moves)

    def run_prompt(
        self, tokens: Tensor, input_pos: Tensor, sequence: Tensor, chunk: Chunk
    ) -> Forward:
        if chunk.start == self.fails_from:
            raise self.error
        return super().run_prompt(tokens, input_pos, sequence, chunk)


def engine_over(target: ToyTarget) -> Engine:
    running = BatchState(range(len(target.slots)), TAIL, "cpu")
    rounds = Rounds(target, SeeingDrafter(target, [True, False]), running, MAX_ROWS, None)
    return Engine(fixed_schedule_over(rounds))


def faulty(sequences: int) -> Faulty:
    return Faulty(SEED, 16, 9, sequences=sequences)


def request_of(prompt: Sequence[int], room: int = ROOM) -> Request:
    limits = Limits(max_new_tokens=room, stop_ids=frozenset())
    return Request(prompt=tuple(prompt), limits=limits, chain_len=3)


def serve(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.busy:
        events += engine.step()
        check_invariants(engine)
    return events


def text_of(events: Sequence[Event], number: int) -> list[int]:
    told = [e.tokens for e in events if isinstance(e, Tokens) and e.request == number]
    return [token for run in told for token in run]


def ends(events: Sequence[Event], kind: type[Finished] | type[Failed]) -> list[int]:
    return sorted(e.request for e in events if isinstance(e, kind))


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0")


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, MemoryError()])
def test_memory_that_runs_out_at_the_fourth_sequence(error: Exception) -> None:
    """In the workspace of a round: caches are all there from the beginning."""
    target = faulty(4)
    target.most, target.error = 3, error
    engine = engine_over(target)
    # Long enough for four to run at once, however long a prompt's turn takes.
    numbers = [engine.add(request_of([i], 100)) for i in range(6)]
    events = serve(engine)
    failed = [event for event in events if isinstance(event, Failed)]
    assert [event.request for event in failed] == numbers[:4]
    (line,) = {event.error for event in failed}
    assert line.startswith("out of memory on ") and "--max-batch-size" in line
    for number in numbers[4:]:
        assert text_of(events, number) == plain_text([number], SEED, 100)


def test_no_memory_for_a_requests_sampling_ends_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_over(faulty(2))
    monkeypatch.setattr(Sampler, "prepare", refusing_noise)
    before, sampled, after = (
        engine.add(replace(request_of([i]), sampling=SamplingParams(temperature=heat, seed=1)))
        for i, heat in enumerate((0.0, 1.0, 0.0))
    )
    events = serve(engine)
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert failed.request == sampled and failed.error.startswith("out of memory on ")
    for number, prompt in ((before, [0]), (after, [2])):
        assert text_of(events, number) == plain_text(prompt, SEED, ROOM)


def test_parameters_that_cannot_be_held_end_their_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it is that breaks: those that are known are refused before."""
    engine = engine_over(faulty(2))
    begin = Sampler.begin

    def overflowing(sampler: Sampler, sequence: int, sampling: SamplingParams, *more: Any) -> None:
        if sampling.min_tokens:
            raise OverflowError("too large a number")
        begin(sampler, sequence, sampling, *more)

    monkeypatch.setattr(Sampler, "begin", overflowing)
    broken = engine.add(replace(request_of([0]), sampling=SamplingParams(min_tokens=1)))
    after = engine.add(request_of([2]))
    events = serve(engine)
    assert ends(events, Failed) == [broken]
    assert text_of(events, after) == plain_text([2], SEED, ROOM)


def refusing_noise(sampler: Sampler, kind: SamplingMode) -> None:
    """As where a GPU is full."""
    if kind >= SamplingMode.SAMPLED:
        raise OUT_OF_MEMORY


def test_a_chunk_that_fails_ends_its_prompt_alone() -> None:
    target = faulty(3)
    target.fails_from = 32
    engine = engine_over(target)
    first, long, last = (engine.add(request_of(p, 40)) for p in ([1], LONG, [2]))
    events = serve(engine)
    assert ends(events, Failed) == [long] and text_of(events, long) == []
    for number, prompt in ((first, [1]), (last, [2])):
        assert text_of(events, number) == plain_text(prompt, SEED, 40)


def test_a_round_that_fails_leaves_a_prompt_that_is_not_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock on which chunks take as long as each other, so that the long one lasts."""
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=count().__next__))
    target = faulty(3)
    target.most = 1
    engine = engine_over(target)
    running = [engine.add(request_of([i])) for i in (1, 2)]
    long = engine.add(request_of(LONG))
    events = serve(engine)
    assert ends(events, Failed) == running
    assert text_of(events, long) == plain_text(LONG, SEED, ROOM)


def test_cancel_in_every_state() -> None:
    engine = engine_over(faulty(2))
    done = engine.add(request_of([1], 1))
    events = serve(engine)
    running, prompt, waiting, last = (engine.add(request_of(p)) for p in ([5], LONG, [6], [7]))
    while not (engine.running and engine.prompts):
        events += engine.step()
    assert [text.number for text in engine.running] == [running]
    assert [text.number for text in engine.prompts] == [prompt]
    assert [text.number for text in engine.waiting] == [waiting, last]
    for number in (done, running, prompt, waiting, waiting, last + 1, -1):
        engine.cancel(number)
    later = engine.add(request_of([8]))  # has the number that nobody had
    events += serve(engine)
    reasons = {e.request: e.reason for e in events if isinstance(e, Finished)}
    cancelled = dict.fromkeys((running, prompt, waiting), "cancelled")
    assert reasons == {done: "length", last: "length", later: "length", **cancelled}
    assert text_of(events, last) == plain_text([7], SEED, ROOM)
    assert text_of(events, later) == plain_text([8], SEED, ROOM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_added_a_request_may_be_gone() -> None:
    """Threads that end or raise behind `add` leave requests that are served, and no lock."""
    engine, numbers = engine_over(faulty(2)), dict[int, int]()

    def client(first: int) -> None:
        numbers[first] = engine.add(request_of([first]))
        if first % 2:
            raise ConnectionError

    clients = [threading.Thread(target=client, args=(first,)) for first in range(6)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    events = serve(engine)
    for first, number in numbers.items():
        assert text_of(events, number) == plain_text([first], SEED, ROOM)


@pytest.mark.parametrize("at", [0, 4])
def test_an_end_that_raises_ends_its_own_request(at: int) -> None:
    """Asked about the first token, and about one of a round."""
    asked: list[int] = []

    def ends_badly(token: int) -> bool:
        asked.append(token)
        if len(asked) > at:
            raise ValueError("no such\ntoken")
        return False

    engine = engine_over(faulty(3))
    limits = Limits(max_new_tokens=ROOM, stop_ids=frozenset(), ends=ends_badly)
    first = engine.add(request_of([1]))
    bad = engine.add(Request(prompt=(2,), limits=limits, chain_len=3))
    last = engine.add(request_of([3]))
    events = serve(engine)
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert (failed.request, failed.error) == (bad, "no such token")
    assert isinstance(failed.cause, ValueError)
    assert text_of(events, first) == plain_text([1], SEED, ROOM)
    assert text_of(events, last) == plain_text([3], SEED, ROOM)


def test_a_callback_that_raises_ends_its_own_generation() -> None:
    def raises(run: list[int]) -> None:
        raise KeyError

    engine = engine_over(faulty(2))
    generations = [
        Generation(request=request_of([i]), callbacks=Callbacks(raises) if i == 1 else Callbacks())
        for i in range(5)
    ]
    answers = list(generate_in_order(engine, generations, 2))
    assert not engine.busy
    check_invariants(engine)
    for i, answer in enumerate(answers):
        if i == 1:
            assert isinstance(answer, Failed) and answer.error == "KeyError"
        else:
            assert isinstance(answer, Result)
            assert answer.token_ids == plain_text([i], SEED, ROOM)
