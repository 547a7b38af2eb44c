"""A server whose engine cannot continue says so, ends, and needs no second signal for it."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import uvicorn
from starlette.testclient import TestClient

from eagle_aot.common.errors import ArtifactError, EagleError
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.engine import Engine, Failed, Limits, Request
from eagle_aot.runtime_runner.engine.schedule import OneRound
from eagle_aot.runtime_runner.frontend.generation import Generation
from eagle_aot.runtime_runner.serve import worker as worker_module
from eagle_aot.runtime_runner.serve.answer_stream import (
    INTERNAL_ERROR,
    AnswerStream,
    RequestFailed,
)
from eagle_aot.runtime_runner.serve.api import server as server_module
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.cli import bind
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.service import LocalService, Streams
from eagle_aot.runtime_runner.serve.spec import ServeSpec
from eagle_aot.runtime_runner.serve.worker import Draining, RequestOutcome, Worker
from support.runner.toy import TAIL, ToyTarget

SPEC = ServeSpec(artifact=".", port=0)  # type: ignore[arg-type]
SECRET = "the text of an exception"
GENERATION = Generation(
    request=Request(
        prompt=(1, 2), limits=Limits(max_new_tokens=4, stop_ids=frozenset()), chain_len=0
    )
)


def service_of(step: Callable[[], object], max_step_seconds: float) -> LocalService:
    """Return a service whose engine runs `step`, and which has one request."""
    engine = Engine(OneRound(Round(ToyTarget(7, 8, 4), None, 0, BatchState(range(1), TAIL, "cpu"))))
    engine.step = engine.abandon = step  # type: ignore[assignment, method-assign]
    service = LocalService.__new__(LocalService)
    service.worker = Worker(engine, 1, max_step_seconds)
    service.metrics, service.streams = Metrics(service.worker), Streams()
    model = {"name": "toy", "created": 0, "keys": [], "context": 64, "max_body": 1024}
    service.model = SimpleNamespace(spec=SPEC, sampling_defaults={}, **model)  # type: ignore[assignment]
    return service


def submit(service: LocalService) -> list[RequestOutcome]:
    outcomes = list[RequestOutcome]()
    service.worker.submit((GENERATION, outcomes.append))
    return outcomes


def lost() -> None:
    raise RuntimeError(SECRET)


@pytest.fixture
def hangs() -> Iterator[Callable[[], None]]:
    """A step that ends with the test."""
    released = threading.Event()

    def step() -> None:
        released.wait()
        lost()

    yield step
    released.set()


@pytest.fixture(params=["lost", "hangs"])
def service(request: pytest.FixtureRequest, hangs: Callable[[], None]) -> LocalService:
    return service_of(lost, 60.0) if request.param == "lost" else service_of(hangs, 0.0)


def test_the_process_ends_with_an_error_and_its_requests_too(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "CLOSE_SECONDS", 0.01)
    outcomes = submit(service)
    with pytest.raises(EagleError, match=r"^the engine failed: (its thread has|a step takes)"):
        asyncio.run(server_module._serve(service, SPEC, bind(SPEC)))
    (outcome,) = outcomes
    assert isinstance(outcome, Failed)


def test_the_log_says_when_the_server_is_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "CLOSE_SECONDS", 0.01)
    service, listeners = service_of(lost, 60.0), bind(SPEC)
    port = listeners[0].getsockname()[1]
    submit(service)
    with caplog.at_level("INFO"), pytest.raises(EagleError, match="the engine failed"):
        asyncio.run(server_module._serve(service, SPEC, listeners))
    line = f"ready: toy at http://127.0.0.1:{port}, context of 64 tokens, 1 requests in parallel"
    assert line in caplog.messages


def test_a_port_that_was_taken_while_the_artifact_was_loaded_is_an_error() -> None:
    (listener,) = bind(SPEC)
    port = listener.getsockname()[1]
    (other,) = bind(ServeSpec(artifact=".", port=port))  # type: ignore[arg-type]
    with other, listener:
        other.listen()
        line = r"cannot be listened on \(Address already in use\)"
        with pytest.raises(EagleError, match=line):
            asyncio.run(server_module._serve(service_of(lost, 60.0), SPEC, [listener]))


def test_health_reports_it(service: LocalService) -> None:
    client = TestClient(make_app(service), "http://localhost")
    assert client.get("/health").json() == {"status": "ok"}
    submit(service)
    service.worker.start()
    service.worker._thread.join(0.05)
    response = client.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "failed"})


def test_signals_end_a_server_whose_step_hangs(hangs: Callable[[], None]) -> None:
    """The first one waits for its request, the second one ends it, and waits for no step."""
    service = service_of(hangs, 60.0)
    submit(service)
    service.worker.start()
    server = server_module.Server(uvicorn.Config(make_app(service)), service)

    async def answer() -> None:
        stream = AnswerStream(1, 60.0, service.metrics)
        service.streams.add(stream)
        for ends in (False, True):
            server.handle_exit(signal.SIGTERM, None)
            assert await server.on_tick(1) is ends
        stream.close()
        await stream.results()

    with pytest.raises(Draining):
        asyncio.run(answer())


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(SECRET), INTERNAL_ERROR),
        (ArtifactError(SECRET), INTERNAL_ERROR),
        (EagleError("too long"), "too long"),
        (MemoryError(), "out of memory on the host"),
    ],
)
def test_clients_read_no_text_of_a_bug(error: Exception, line: str) -> None:
    async def results() -> None:
        stream = AnswerStream(1, 60.0, service_of(lost, 60.0).metrics)
        stream.put(0, Failed.of(0, error))
        try:
            await stream.results()
        finally:
            stream.close()

    with pytest.raises(RequestFailed, match=f"^{line}"):
        asyncio.run(results())
