"""The engine's thread: who is served, who is refused, and who hears what."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from torch import Tensor

from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.decode.round import BatchState, Outcome, Round
from eagle_aot.runtime_runner.engine import Engine, Failed, Limits, Request
from eagle_aot.runtime_runner.engine.schedule import OneRound
from eagle_aot.runtime_runner.frontend.generation import Callbacks, Generation
from eagle_aot.runtime_runner.frontend.result import Result
from eagle_aot.runtime_runner.serve.worker import Draining, Full, Heard, Worker
from support.runner.toy import TAIL, ToyTarget, plain_text

SEED, SECONDS = 7, 10.0


class Ears:
    """Hears what came of one request, and its tokens."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = threading.Event()
        self.heard: Heard | None = None

    def hear(self, heard: Heard) -> None:
        assert threading.current_thread().name == "engine"
        self.heard = heard
        self.ended.set()

    def wait(self) -> Heard:
        assert self.ended.wait(SECONDS) and self.heard is not None
        return self.heard


class Gate:
    """Lets steps through, or holds them."""

    def __init__(self, engine: Engine) -> None:
        self._step, self.open = engine.step, threading.Event()
        self.error: Exception | None = None
        self.open.set()
        engine.step = self.step  # type: ignore[method-assign]

    def step(self) -> list[object]:
        assert self.open.wait(SECONDS)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return list(self._step())


@pytest.fixture
def engine() -> Engine:
    running = BatchState(range(1), TAIL, "cpu")
    return Engine(OneRound(Round(ToyTarget(SEED, 8, 4), None, 0, running)))


@pytest.fixture
def gate(engine: Engine) -> Gate:
    return Gate(engine)


@pytest.fixture
def worker(engine: Engine, gate: Gate) -> Iterator[Worker]:
    worker = Worker(engine, most_waiting=2)
    worker.start()
    yield worker
    gate.open.set()
    worker.close()


def asked(
    prompt: Sequence[int], room: int, on_tokens: Callable[[list[int]], None] = lambda run: None
) -> Generation:
    limits = Limits(max_new_tokens=room, stop_ids=frozenset())
    request = Request(prompt=tuple(prompt), limits=limits, chain_len=0)
    return Generation(request=request, callbacks=Callbacks(on_tokens))


def submit(worker: Worker, prompt: Sequence[int], room: int = 6) -> tuple[Ears, int]:
    ears = Ears()
    (number,) = worker.submit((asked(prompt, room, ears.tokens.extend), ears.hear))
    return ears, number


def test_each_hears_its_own_text(worker: Worker) -> None:
    prompts = [[1, 2, 3], [4, 5]]
    every = [submit(worker, prompt)[0] for prompt in prompts]
    for ears, prompt in zip(every, prompts, strict=True):
        heard = ears.wait()
        assert isinstance(heard, Result)
        assert heard.token_ids == ears.tokens == plain_text(prompt, SEED, 6)
    assert worker.serving == 0


def test_time_is_that_of_forwards_or_of_what_lies_between(worker: Worker) -> None:
    started = time.perf_counter()
    assert isinstance(submit(worker, [1, 2, 3])[0].wait(), Result)
    worker.close()  # behind its step
    forwards = worker.forwards
    assert forwards.rounds == 5  # the prompt gave the first of six tokens
    assert forwards.rounds_seconds > 0 and forwards.prompts_seconds > 0
    waited = forwards.rounds_seconds + forwards.prompts_seconds
    assert waited < worker.steps_seconds < time.perf_counter() - started


def test_what_a_step_has_to_tell_wakes_a_loop_once(worker: Worker, gate: Gate) -> None:
    """And all of it is told in its order, also behind a step that breaks."""
    woken, heard = list[object](), list[object]()

    class Loop:
        def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
            woken.append(len(heard))
            call(*arguments)

    def tell(word: object) -> None:
        worker.outbox.add(loop, heard.append, word)  # type: ignore[arg-type]

    loop, done = Loop(), [Ears(), Ears()]
    gate.open.clear()
    gate.error = KeyError("a bug")
    for ears in done:

        def hear(answer: Heard, ears: Ears = ears) -> None:
            tell("a")
            tell("b")
            ears.hear(answer)

        worker.submit((asked([1, 2], 5, tell), hear))
    gate.open.set()
    for ears in done:
        ears.wait()
    worker.close()
    assert heard == ["a", "b", "a", "b"] and woken == [0]
    assert all(isinstance(ears.heard, Failed) for ears in done)


def test_where_a_device_computes_a_step_is_told_of_while_the_next_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Engine, "waits", True)
    round_ = Round(ToyTarget(SEED, 8, 4), None, 0, BatchState(range(1), TAIL, "cpu"))
    play, outcomes, order = round_.play, round_.outcomes, list[str]()

    def launch() -> Tensor:
        order.append("launched")
        return play()

    def read(played: Tensor) -> list[Outcome]:
        order.append("waited")
        return outcomes(played)

    class Loop:
        def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
            call(*arguments)

    monkeypatch.setattr(round_, "play", launch)
    monkeypatch.setattr(round_, "outcomes", read)
    worker, ears = Worker(Engine(OneRound(round_)), most_waiting=0), Ears()

    def tell(tokens: list[int]) -> None:
        worker.outbox.add(Loop(), order.append, "told")  # type: ignore[arg-type]

    worker.submit((asked([1, 2], 3, tell), ears.hear))
    worker.start()
    assert isinstance(ears.wait(), Result)
    worker.close()
    assert order == [*["launched", "told", "waited"] * 2, "told"]


def test_a_loop_that_is_closed_hears_nothing_and_the_others_do(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """A request may outlive who asked for it."""
    closed, open_, heard = asyncio.new_event_loop(), asyncio.new_event_loop(), list[int]()
    closed.close()

    def hear(tokens: list[int]) -> None:
        for loop in (closed, open_):
            worker.outbox.add(loop, heard.extend, tokens)

    ears = Ears()
    worker.submit((asked([1, 2], 3, hear), ears.hear))
    found = ears.wait()
    assert isinstance(found, Result)
    assert isinstance(submit(worker, [3])[0].wait(), Result), "the worker has ended"
    worker.close()  # behind its step
    open_.call_soon(open_.stop)
    open_.run_forever()
    open_.close()
    assert heard == found.token_ids
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["an event loop is closed: calls for it that are lost: 1"] * 3
    assert all(record.exc_info is None for record in caplog.records)


def test_a_worker_outlives_what_cannot_be_sent(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def send() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(worker.outbox, "send", send)
    for _ in range(2):
        assert isinstance(submit(worker, [3])[0].wait(), Result)
    assert {record.getMessage() for record in caplog.records} == {
        "what a step had to tell could not be sent"
    }
    assert all(record.exc_info for record in caplog.records)


def test_a_thread_that_idles_wakes_up(worker: Worker) -> None:
    for _ in range(3):
        assert isinstance(submit(worker, [1, 2])[0].wait(), Result)


def test_no_more_wait_than_may(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    every = [submit(worker, [1, 2])[0] for _ in range(3)]  # one cache, two that wait
    with pytest.raises(Full, match=r"^3 requests run or wait, of 3 at most$"):
        submit(worker, [1, 2])
    gate.open.set()
    assert all(isinstance(ears.wait(), Result) for ears in every)
    assert isinstance(submit(worker, [1, 2])[0].wait(), Result)


def test_all_are_taken_or_none(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    submit(worker, [1, 2])
    with pytest.raises(Full):
        worker.submit(*((asked([1], 2), Ears().hear) for _ in range(3)))
    assert worker.serving == 1


def test_more_than_ever_fit_are_not_told_to_come_again(worker: Worker) -> None:
    with pytest.raises(SettingError, match=r"^4 answers at once: 3 at most"):
        worker.submit(*((asked([1], 2), Ears().hear) for _ in range(4)))
    assert worker.serving == 0


def test_a_cancelled_one_ends_and_the_next_is_served(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    first, number = submit(worker, [1, 2], room=10**6)
    second, _ = submit(worker, [3])
    worker.cancel(number)
    gate.open.set()
    heard = first.wait()
    assert isinstance(heard, Result) and heard.finish_reason == "cancelled"
    assert isinstance(second.wait(), Result)
    worker.cancel(number)  # again, and of one that has ended
    assert isinstance(submit(worker, [3])[0].wait(), Result)


def test_draining_ends_what_runs_and_takes_no_more(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    ears, _ = submit(worker, [1, 2])
    worker.drain()
    with pytest.raises(Draining, match=r"^shutting down"):
        submit(worker, [3])
    gate.open.set()
    assert isinstance(ears.wait(), Result)


def test_a_callback_that_raises_ends_its_own_alone(worker: Worker, gate: Gate) -> None:
    def broken(run: list[int]) -> None:
        raise ValueError("no such character")

    gate.open.clear()
    ears = Ears()
    worker.submit((asked([1, 2], 5, broken), ears.hear))
    other, _ = submit(worker, [3])
    gate.open.set()
    heard = ears.wait()
    assert isinstance(heard, Failed) and "no such character" in heard.error
    assert isinstance(other.wait(), Result)


def test_a_step_that_breaks_ends_all_and_the_worker_goes_on(worker: Worker, gate: Gate) -> None:
    gate.open.clear()
    gate.error = KeyError("a bug")
    every = [submit(worker, [1, 2])[0], submit(worker, [3])[0]]
    gate.open.set()
    assert all(isinstance(ears.wait(), Failed) for ears in every)
    heard = submit(worker, [3])[0].wait()
    assert isinstance(heard, Result) and heard.token_ids == plain_text([3], SEED, 6)


def test_requests_from_many_threads(worker: Worker) -> None:
    found: list[bool] = []

    def client(seed: int) -> None:
        for number in range(20):
            prompt = [seed, number % 17]
            while True:
                try:
                    ears, _ = submit(worker, prompt)
                    break
                except Full:
                    time.sleep(0.001)  # leave the interpreter to the engine's thread
            heard = ears.wait()
            right = isinstance(heard, Result) and heard.token_ids == plain_text(prompt, SEED, 6)
            found.append(right)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 80
