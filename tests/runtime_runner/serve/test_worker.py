"""The engine's thread: which requests it accepts, and which outcomes it reports."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from eagle_aot.common.errors import EagleError, SettingError
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Outcome, Round
from eagle_aot.runtime_runner.engine import Engine, Event, Failed, Limits, Request
from eagle_aot.runtime_runner.engine.schedule import OneRound
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Generation, Result
from eagle_aot.runtime_runner.frontend.stream import TextStream
from eagle_aot.runtime_runner.serve.worker import Draining, QueueFull, RequestOutcome, Worker
from support.runner.toy import TAIL, ToyTarget, plain_text

SEED, SECONDS = 7, 10.0


class Client:
    """Receives the tokens and the outcome of one request."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = threading.Event()
        self.outcome: RequestOutcome | None = None

    def on_end(self, outcome: RequestOutcome) -> None:
        assert threading.current_thread().name == "engine"
        self.outcome = outcome
        self.ended.set()

    def wait(self) -> RequestOutcome:
        assert self.ended.wait(SECONDS) and self.outcome is not None
        return self.outcome


class Gate:
    """Lets the engine run steps, or makes it wait."""

    def __init__(self, engine: Engine) -> None:
        self._step, self.open = engine.step, threading.Event()
        self.error: BaseException | None = None
        self.open.set()
        engine.step = self.step  # type: ignore[method-assign]

    def step(self) -> list[Event]:
        assert self.open.wait(SECONDS)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self._step()


@pytest.fixture
def engine() -> Engine:
    running = BatchState(range(1), TAIL, "cpu")
    return Engine(OneRound(Round(ToyTarget(SEED, 8, 4), None, 0, running)))


@pytest.fixture
def gate(engine: Engine) -> Gate:
    return Gate(engine)


@pytest.fixture
def worker(engine: Engine, gate: Gate) -> Iterator[Worker]:
    worker = Worker(engine, max_waiting=2)
    worker.start()
    yield worker
    gate.open.set()
    worker.close()


def generation_of(
    prompt: Sequence[int],
    max_new_tokens: int,
    on_tokens: Callable[[list[int]], None] = lambda run: None,
) -> Generation:
    limits = Limits(max_new_tokens=max_new_tokens, stop_ids=frozenset())
    request = Request(prompt=tuple(prompt), limits=limits, chain_len=0)
    return Generation(request=request, callbacks=Callbacks(on_tokens))


def submit(worker: Worker, prompt: Sequence[int], max_new_tokens: int = 6) -> tuple[Client, int]:
    client = Client()
    generation = generation_of(prompt, max_new_tokens, client.tokens.extend)
    (number,) = worker.submit((generation, client.on_end))
    return client, number


def test_each_request_gets_its_own_text(worker: Worker) -> None:
    prompts = [[1, 2, 3], [4, 5]]
    clients = [submit(worker, prompt)[0] for prompt in prompts]
    for client, prompt in zip(clients, prompts, strict=True):
        outcome = client.wait()
        assert isinstance(outcome, Result)
        assert outcome.token_ids == client.tokens == plain_text(prompt, SEED, 6)
    assert worker.pending == 0


def test_step_time_is_the_time_of_launches_and_of_the_host(worker: Worker) -> None:
    started = time.perf_counter()
    assert isinstance(submit(worker, [1, 2, 3])[0].wait(), Result)
    worker.close()  # after its step
    launches = worker.launches
    assert launches.rounds == 5  # the prompt gave the first of six tokens
    assert launches.rounds_seconds > 0 and launches.prompts_seconds > 0
    waited = launches.rounds_seconds + launches.prompts_seconds
    assert waited < worker.step_seconds < time.perf_counter() - started


def test_the_calls_of_a_step_wake_a_loop_once(worker: Worker, gate: Gate) -> None:
    """They are made in their order, also after a step that fails."""
    wakes, words = list[object](), list[object]()

    class Loop:
        def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
            wakes.append(len(words))
            call(*arguments)

    def send(word: object) -> None:
        worker.outbox.add(loop, words.append, word)  # type: ignore[arg-type]

    loop, clients = Loop(), [Client(), Client()]
    gate.open.clear()
    gate.error = KeyError("a bug")
    for client in clients:

        def on_end(outcome: RequestOutcome, client: Client = client) -> None:
            send("a")
            send("b")
            client.on_end(outcome)

        worker.submit((generation_of([1, 2], 5, send), on_end))
    gate.open.set()
    for client in clients:
        client.wait()
    worker.close()
    assert words == ["a", "b", "a", "b"] and wakes == [0]
    assert all(isinstance(client.outcome, Failed) for client in clients)


def test_with_a_device_the_calls_of_a_step_are_sent_while_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "is_asynchronous", True)
    round_ = Round(ToyTarget(SEED, 8, 4), None, 0, BatchState(range(1), TAIL, "cpu"))
    run, outcomes, order = round_.run, round_.outcomes, list[str]()

    def launch() -> Tensor:
        order.append("launched")
        return run()

    def read(packed: Tensor) -> list[Outcome]:
        order.append("waited")
        return outcomes(packed)

    class Loop:
        def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
            call(*arguments)

    monkeypatch.setattr(round_, "run", launch)
    monkeypatch.setattr(round_, "outcomes", read)
    worker, client = Worker(Engine(OneRound(round_)), max_waiting=0), Client()

    def send(tokens: list[int]) -> None:
        worker.outbox.add(Loop(), order.append, "sent")  # type: ignore[arg-type]

    worker.submit((generation_of([1, 2], 3, send), client.on_end))
    worker.start()
    assert isinstance(client.wait(), Result)
    worker.close()
    assert order == [*["launched", "sent", "waited"] * 2, "sent"]


def test_a_closed_loop_gets_no_calls_and_the_others_do(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """A request may outlive its client."""
    closed, open_, received = asyncio.new_event_loop(), asyncio.new_event_loop(), list[int]()
    closed.close()

    def send(tokens: list[int]) -> None:
        for loop in (closed, open_):
            worker.outbox.add(loop, received.extend, tokens)

    client = Client()
    worker.submit((generation_of([1, 2], 3, send), client.on_end))
    outcome = client.wait()
    assert isinstance(outcome, Result)
    assert isinstance(submit(worker, [3])[0].wait(), Result), "the worker has ended"
    worker.close()  # after its step
    open_.call_soon(open_.stop)
    open_.run_forever()
    open_.close()
    assert received == outcome.token_ids
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["an event loop is closed: calls for it that are lost: 1"] * 3
    assert all(record.exc_info is None for record in caplog.records)


def test_a_worker_survives_calls_that_cannot_be_sent(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def send() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(worker.outbox, "send", send)
    for _ in range(2):
        assert isinstance(submit(worker, [3])[0].wait(), Result)
    assert {record.getMessage() for record in caplog.records} == {
        "the events of a step could not be sent"
    }
    assert all(record.exc_info for record in caplog.records)


def test_an_idle_thread_wakes_up(worker: Worker) -> None:
    for _ in range(3):
        assert isinstance(submit(worker, [1, 2])[0].wait(), Result)


def test_a_full_queue_refuses_requests(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    clients = [submit(worker, [1, 2])[0] for _ in range(3)]  # one runs, two wait
    with pytest.raises(QueueFull, match=r"^3 requests run or wait, of 3 at most$"):
        submit(worker, [1, 2])
    gate.open.set()
    assert all(isinstance(client.wait(), Result) for client in clients)
    assert isinstance(submit(worker, [1, 2])[0].wait(), Result)


def test_all_requests_of_a_submission_are_accepted_or_none(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    submit(worker, [1, 2])
    with pytest.raises(QueueFull):
        worker.submit(*((generation_of([1], 2), Client().on_end) for _ in range(3)))
    assert worker.pending == 1


def test_requests_that_never_fit_are_an_error(worker: Worker) -> None:
    with pytest.raises(SettingError, match=r"^4 answers at once: 3 at most"):
        worker.submit(*((generation_of([1], 2), Client().on_end) for _ in range(4)))
    assert worker.pending == 0


def test_a_cancelled_request_ends_and_the_next_one_runs(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    first, number = submit(worker, [1, 2], max_new_tokens=10**6)
    second, _ = submit(worker, [3])
    worker.cancel(number)
    gate.open.set()
    outcome = first.wait()
    assert isinstance(outcome, Result) and outcome.finish_reason == "cancelled"
    assert isinstance(second.wait(), Result)
    worker.cancel(number)  # again, after it has ended
    assert isinstance(submit(worker, [3])[0].wait(), Result)


def test_draining_finishes_requests_and_accepts_no_more(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    client, _ = submit(worker, [1, 2])
    worker.drain()
    with pytest.raises(Draining, match=r"^shutting down"):
        submit(worker, [3])
    gate.open.set()
    assert isinstance(client.wait(), Result)


class PanicException(BaseException):
    """As the tokenizers library's: no Exception."""


ERRORS = [KeyError("a secret"), PanicException("a secret")]


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*arguments: object) -> None:
        raise error

    return call


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("callback", ["on_tokens", "is_stop", "decode", "on_text"])
def test_a_callback_that_raises_ends_its_own_request_alone(
    worker: Worker,
    gate: Gate,
    callback: str,
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between rounds, within one, and when the text is finished."""
    generation, fails = generation_of([1, 2], 5), raising(error)
    if callback == "is_stop":
        limits = replace(generation.request.limits, is_stop=fails)
        generation = replace(generation, request=replace(generation.request, limits=limits))
    elif callback == "decode":
        generation = replace(generation, decode=fails)
    else:
        text = TextStream(lambda ids: "x" * len(ids), on_text=fails)
        generation = replace(generation, text=text, decode=lambda ids: "x")
        if callback == "on_tokens":
            generation = replace(generation, callbacks=Callbacks(fails), text=TextStream())
    gate.open.clear()
    client = Client()
    worker.submit((generation, client.on_end))
    other, _ = submit(worker, [3])
    gate.open.set()
    outcome = client.wait()
    assert isinstance(outcome, Failed) and outcome.cause is error and not outcome.is_expected
    assert isinstance(other.wait(), Result) and worker.failure is None
    (record,) = caplog.records
    assert record.getMessage() == "a request failed"
    assert record.exc_info is not None and record.exc_info[1] is error


@pytest.mark.parametrize("error", ERRORS)
def test_a_failed_step_ends_all_requests_and_the_worker_continues(
    worker: Worker, gate: Gate, error: BaseException
) -> None:
    gate.open.clear()
    gate.error = error
    clients = [submit(worker, [1, 2])[0], submit(worker, [3])[0]]
    gate.open.set()
    assert all(isinstance(client.wait(), Failed) for client in clients)
    outcome = submit(worker, [3])[0].wait()
    assert isinstance(outcome, Result) and outcome.token_ids == plain_text([3], SEED, 6)
    assert worker.failure is None


def test_an_end_that_cannot_be_reported_concerns_no_other_request(
    worker: Worker, gate: Gate
) -> None:
    gate.open.clear()
    worker.submit((generation_of([1, 2], 3), raising(PanicException())))
    other, _ = submit(worker, [3])
    gate.open.set()
    assert isinstance(other.wait(), Result)
    assert worker.pending == 0 and worker.failure is None


@pytest.mark.parametrize("error", ERRORS)
def test_an_engine_that_cannot_continue_ends_all_requests_and_accepts_no_more(
    worker: Worker, engine: Engine, gate: Gate, error: BaseException
) -> None:
    """As on a GPU that is lost: not even its state can be reset."""
    engine.abandon = raising(error)  # type: ignore[method-assign]
    gate.open.clear()
    gate.error = error
    clients = [submit(worker, [1, 2])[0], submit(worker, [3])[0]]
    gate.open.set()
    assert all(isinstance(client.wait(), Failed) for client in clients)
    worker._thread.join(SECONDS)
    assert worker.failure == "its thread has ended" and worker.pending == 0
    with pytest.raises(Draining):
        submit(worker, [3])
    worker.close()


def test_a_step_that_does_not_end_is_a_failure(engine: Engine, gate: Gate) -> None:
    """Its requests are ended in another thread, and closing the worker does not wait for it."""
    worker, outcomes, sent = Worker(engine, 1, max_step_seconds=0.01), list[str](), list[str]()
    gate.open.clear()
    worker.start()
    assert worker.failure is None, "it has nothing to do"

    class Loop:
        def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
            call(*arguments)

    def on_end(outcome: RequestOutcome) -> None:
        assert isinstance(outcome, Failed)
        outcomes.append(outcome.error)
        worker.outbox.add(Loop(), sent.append, "ended")  # type: ignore[arg-type]

    worker.submit((generation_of([1, 2], 3), on_end))
    deadline = time.perf_counter() + SECONDS
    while worker.failure is None and time.perf_counter() < deadline:
        time.sleep(0.005)
    assert worker.failure == "a step takes longer than 0.01 s"
    worker.end_all(EagleError("stopped"))
    assert outcomes == ["stopped"] and sent == ["ended"]
    gate.open.set()  # it ends after all, with events of a request that has ended
    worker.close()
    assert worker.failure is None and len(outcomes) == 1


def test_a_callback_that_hangs_blocks_no_other_thread(engine: Engine) -> None:
    """As a tokenizer's decoder may: health, signals and other requests are still answered."""
    worker, hangs, released = Worker(engine, 2), threading.Event(), threading.Event()
    outcomes = list[RequestOutcome]()

    def hang(tokens: list[int]) -> None:
        hangs.set()
        released.wait(6 * SECONDS)

    def use() -> None:
        worker.cancel(*worker.submit((generation_of([3], 3), outcomes.append)))
        worker._max_step_seconds = 0.01  # not before: a failed engine accepts no request
        while worker.failure is None:
            time.sleep(0.001)
        worker.drain()
        worker.end_all(EagleError("stopped"))

    worker.submit((generation_of([1, 2], 3, hang), outcomes.append))
    worker.start()
    assert hangs.wait(SECONDS)
    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(3 * SECONDS)
    assert not thread.is_alive(), "it waits for the hanging one"
    assert not released.is_set() and worker.pending == 0 and len(outcomes) == 2
    released.set()
    worker.close()


def test_requests_from_many_threads(worker: Worker) -> None:
    right: list[bool] = []

    def run_client(seed: int) -> None:
        for number in range(20):
            prompt = [seed, number % 17]
            while True:
                try:
                    client, _ = submit(worker, prompt)
                    break
                except QueueFull:
                    time.sleep(0.001)  # leave the interpreter to the engine's thread
            outcome, expected = client.wait(), plain_text(prompt, SEED, 6)
            right.append(isinstance(outcome, Result) and outcome.token_ids == expected)

    threads = [threading.Thread(target=run_client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert right == [True] * 80
