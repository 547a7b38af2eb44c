"""A fault ends the requests that it concerns, and the others get their texts."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eagle_aot.lab.invariants import check_invariants
from eagle_aot.runtime_runner.engine import Engine, Failed, Limits, Request
from eagle_aot.runtime_runner.engine import engine as engine_module
from eagle_aot.runtime_runner.frontend.generation import (
    Callbacks,
    Generation,
    Result,
    generate_in_order,
)
from eagle_aot.runtime_runner.sampling.parameters import SamplingMode, SamplingParams
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from support.runner.engines import ObservedTarget, Requests, rounds_over, schedule_over
from support.runner.engines import request_of as request_of_length
from support.runner.toy import SeeingDrafter, plain_text

SEED, LENGTH = 11, 12
LONG = [3] * 64  # four chunks


def requests_of(sequences: int) -> tuple[Requests, ObservedTarget]:
    target = ObservedTarget(SEED, 16, sequences)
    engine = Engine(schedule_over(rounds_over(target, SeeingDrafter(target, [True, False]))))
    return Requests(engine, check_invariants), target


def request_of(prompt: Sequence[int], length: int = LENGTH) -> Request:
    return request_of_length(prompt, length, 3)


def check_text(requests: Requests, number: int) -> None:
    prompt, length = requests.prompts[number], len(requests.tokens[number])
    assert requests.ends[number].reason == "length" and length >= LENGTH
    assert requests.tokens[number] == plain_text(prompt, SEED, length)


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0")


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, MemoryError()])
def test_memory_that_runs_out_at_the_fourth_sequence_ends_four_requests(error: Exception) -> None:
    """In the workspace of a round: all caches are allocated at the start."""
    requests, target = requests_of(4)
    target.most_sequences, target.error = 3, error
    # Long enough for four to run at once, however long a prompt's turn takes.
    numbers = [requests.add(request_of([i], 100)) for i in range(6)]
    requests.finish()
    assert [*requests.failed] == numbers[:4]
    (line,) = {failed.error for failed in requests.failed.values()}
    assert line.startswith("out of memory on ") and "--max-batch-size" in line
    for number in numbers[4:]:
        check_text(requests, number)


def refuse_noise(sampler: Sampler, kind: SamplingMode) -> None:
    """Fail as on a GPU that is full."""
    if kind >= SamplingMode.SAMPLED:
        raise OUT_OF_MEMORY


def test_no_memory_for_a_requests_sampling_ends_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, _ = requests_of(2)
    monkeypatch.setattr(Sampler, "prepare", refuse_noise)
    before, sampled, after = (
        requests.add(replace(request_of([i]), sampling=SamplingParams(temperature=heat, seed=1)))
        for i, heat in enumerate((0.0, 1.0, 0.0))
    )
    requests.finish()
    assert [*requests.failed] == [sampled]
    assert requests.failed[sampled].error.startswith("out of memory on ")
    check_text(requests, before)
    check_text(requests, after)


def test_parameters_that_break_the_sampler_end_their_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever breaks: parameters that are known to are refused before."""
    requests, _ = requests_of(2)
    begin = Sampler.begin

    def overflowing(sampler: Sampler, sequence: int, sampling: SamplingParams, *more: Any) -> None:
        if sampling.min_tokens:
            raise OverflowError("too large a number")
        begin(sampler, sequence, sampling, *more)

    monkeypatch.setattr(Sampler, "begin", overflowing)
    broken = requests.add(replace(request_of([0]), sampling=SamplingParams(min_tokens=1)))
    after = requests.add(request_of([2]))
    requests.finish()
    assert [*requests.failed] == [broken]
    check_text(requests, after)


def test_a_chunk_that_fails_ends_its_prompt_alone() -> None:
    requests, target = requests_of(3)
    target.chunk_fails_at = 32
    first, long, last = (requests.add(request_of(p, 40)) for p in ([1], LONG, [2]))
    requests.finish()
    assert [*requests.failed] == [long] and requests.tokens[long] == []
    check_text(requests, first)
    check_text(requests, last)


def test_a_round_that_fails_does_not_end_a_prompt_that_is_not_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a clock by which all chunks take as long as each other, so that the long prompt lasts."""
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=count().__next__))
    requests, target = requests_of(3)
    target.most_sequences = 1
    running = [requests.add(request_of([i])) for i in (1, 2)]
    long = requests.add(request_of(LONG))
    requests.finish()
    assert [*requests.failed] == running
    check_text(requests, long)


def test_requests_are_cancelled_in_every_state() -> None:
    requests, _ = requests_of(2)
    engine = requests.engine
    done = requests.add(request_of([1], 1))
    requests.finish()
    running, prompt, waiting, last = (requests.add(request_of(p)) for p in ([5], LONG, [6], [7]))
    requests.step_until(lambda: bool(engine.running and engine.prefilling))
    assert [text.request_id for text in engine.running] == [running]
    assert [text.request_id for text in engine.prefilling] == [prompt]
    assert [text.request_id for text in engine.waiting] == [waiting, last]
    for number in (done, running, prompt, waiting, waiting, last + 1, -1):
        engine.cancel(number)
    later = requests.add(request_of([8]))  # has the number that no request had
    requests.finish()
    reasons = {number: end.reason for number, end in requests.ends.items()}
    cancelled = dict.fromkeys((running, prompt, waiting), "cancelled")
    assert reasons == {done: "length", last: "length", later: "length", **cancelled}
    check_text(requests, last)
    check_text(requests, later)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_requests_of_threads_that_end_are_served() -> None:
    """Threads that end or raise after `add` leave requests that are served, and no lock."""
    requests, _ = requests_of(2)

    def client(first: int) -> None:
        requests.add(request_of([first]))
        if first % 2:
            raise ConnectionError

    clients = [threading.Thread(target=client, args=(first,)) for first in range(6)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    requests.finish()
    assert sorted(requests.prompts.values()) == [(first,) for first in range(6)]
    for number in requests.prompts:
        check_text(requests, number)


@pytest.mark.parametrize("at", [0, 4])
def test_an_end_function_that_raises_ends_its_own_request(at: int) -> None:
    """It raises at the first token, and at one of a round."""
    seen: list[int] = []

    def ends_badly(token: int) -> bool:
        seen.append(token)
        if len(seen) > at:
            raise ValueError("no such\ntoken")
        return False

    requests, _ = requests_of(3)
    limits = Limits(max_new_tokens=LENGTH, stop_ids=frozenset(), is_stop=ends_badly)
    first = requests.add(request_of([1]))
    bad = requests.add(Request(prompt=(2,), limits=limits, chain_len=3))
    last = requests.add(request_of([3]))
    requests.finish()
    assert [*requests.failed] == [bad] and requests.failed[bad].error == "no such token"
    assert isinstance(requests.failed[bad].cause, ValueError)
    check_text(requests, first)
    check_text(requests, last)


def test_a_callback_that_raises_ends_its_own_generation() -> None:
    def raises(run: list[int]) -> None:
        raise KeyError

    engine = requests_of(2)[0].engine
    generations = [
        Generation(request=request_of([i]), callbacks=Callbacks(raises) if i == 1 else Callbacks())
        for i in range(5)
    ]
    answers = list(generate_in_order(engine, generations, 2))
    assert not engine.busy
    for i, answer in enumerate(answers):
        if i == 1:
            assert isinstance(answer, Failed) and answer.error == "KeyError"
        else:
            assert isinstance(answer, Result)
            assert answer.token_ids == plain_text([i], SEED, LENGTH)
