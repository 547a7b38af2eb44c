"""Several engines that serve one application, on Ray Serve.

A front answers requests. Each of its answers comes from one replica, which has an engine and, on
machines with GPUs, one of them. When a replica dies, the answers that it had not ended are
requested from another one. A text depends on its request alone, so the other replica gives the same
text, and the answer continues where the first one broke off.
"""

import asyncio
import contextvars
import functools
import logging
import secrets
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec
import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from eagle_aot.artifact import Manifest
from eagle_aot.artifact.verified import forget, verify_once
from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner.engine import Failed
from eagle_aot.runtime_runner.load import load_artifact
from eagle_aot.runtime_runner.serve.answer_stream import AnswerDelta, AnswerStream, StreamItem
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.on_ray import secure_replica
from eagle_aot.runtime_runner.serve.on_ray.batch import gpus_of
from eagle_aot.runtime_runner.serve.service import AnswerRequest, LocalService, ServedModel, Streams
from eagle_aot.runtime_runner.serve.spec import ServeSpec
from eagle_aot.runtime_runner.serve.worker import check_capacity

log = logging.getLogger(__name__)
ATTEMPTS = 8
"""The limit of attempts at an answer, for a request that kills every replica."""
POLL = 0.1  # seconds
BY_CONVERSATION = RequestRouterConfig(
    request_router_class="ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
)
"""Sends a conversation to the replica whose cache has its earlier turns."""
QUIET = {"encoding": "JSON", "log_level": "WARNING"}
DIED = RayActorError, DeploymentUnavailableError


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSettings:
    """The server's options and API keys, and the GPUs and sequences of each replica. Replicas
    with the same `key` verify the artifact once for all."""

    spec: ServeSpec
    keys: Sequence[str]
    gpus: float
    slots: int
    key: str = field(default_factory=secrets.token_hex)


class Replica:
    """One engine."""

    def __init__(self, settings: ReplicaSettings) -> None:
        secure_replica()
        spec = settings.spec
        verify = functools.partial(verify_once, key=settings.key)
        runner = load_artifact(spec.artifact, verify=verify, **spec.load_options)
        runner.adaptive_schedule(trees=False)  # measures costs while no request runs
        runner.warm_up(chain_len="auto")
        self._service = LocalService(runner, spec)
        self._service.worker.start()

    def check_health(self) -> None:
        """Raise RuntimeError where the engine cannot continue: Ray then starts another replica."""
        if failure := self._service.failure:
            raise RuntimeError(failure)

    async def parts(self, request: AnswerRequest) -> AsyncIterator[StreamItem]:
        """Yield the parts of one answer. What `Service.submit` and `AnswerStream.parts` raise is
        yielded last: raised, it would be a failure of the replica."""
        try:
            stream = await self._service.submit(request)
        except Exception as error:
            yield error
            return
        try:
            async for _, part in stream.parts():
                yield part
        except Exception as error:
            yield error
        finally:
            stream.close()


@serve.ingress()
class Front:
    """The application."""

    def __init__(self, settings: ReplicaSettings, handle: DeploymentHandle[Replica]) -> None:
        secure_replica()
        self._service = ReplicatedService(settings, handle)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self._service)

    async def drain(self, ends: bool) -> int:
        """Accept no more requests, and end those that run if `ends`. Returns how many run."""
        self._service.draining = True
        if ends:
            self._service.streams.end()
        return self._service.pending


class ReplicatedService:
    """Answers requests with replicas, those of one conversation with the same replica."""

    def __init__(self, settings: ReplicaSettings, handle: DeploymentHandle[Replica]) -> None:
        self.model = ServedModel(settings.spec.artifact, settings.spec, settings.keys)
        self.metrics, self.streams = Metrics(self), Streams()
        self.slots = settings.slots * (settings.spec.replicas or 1)
        self.draining = False
        self.failure = None
        """Ray replaces replicas that fail."""
        self._limit = self.slots + settings.spec.max_waiting
        self._handle = handle.options(stream=True)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        """The number of answers that have not ended."""
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        """The number of pending answers that have no sequence."""
        return max(0, self.pending - self.slots)

    async def submit(self, request: AnswerRequest) -> AnswerStream:
        count = len(request.prompts)
        check_capacity(count, self.pending, self._limit, self.draining)
        stream = AnswerStream(count, self.model.spec.request_timeout, self.metrics)
        self.streams.add(stream)
        tasks = [
            asyncio.create_task(
                self._answer(stream, index, replace(request, prompts=[prompt])),
                context=contextvars.Context(),  # Ray routes one call for each request it knows of
            )
            for index, prompt in enumerate(request.prompts)
        ]
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        stream.cancel = lambda: [task.cancel() for task in tasks]
        return stream

    async def _answer(self, stream: AnswerStream, index: int, request: AnswerRequest) -> None:
        replay = ReplayFilter()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async for part in self._parts(request):
                    item = replay.unseen(part) if isinstance(part, AnswerDelta) else part
                    stream.put(index, item)
                return
            except DIED as error:
                died = type(error).__name__  # its text is a page of Ray's
                log.warning("a replica died during an answer, attempt %d: %s", attempt, died)
                replay.restart()
                await asyncio.sleep(POLL * attempt)
            except Exception as error:
                stream.put(index, error)
                return
        died_often = EagleError(f"{ATTEMPTS} replicas died during it")
        stream.put(index, Failed.of(index, died_often))

    async def _parts(self, request: AnswerRequest) -> AsyncIterator[StreamItem]:
        handle = self._handle
        if request.conversation is not None:
            handle = handle.options(session_id=request.conversation)
        parts = handle.parts.remote(request)
        try:
            async for part in parts:
                yield part
        finally:
            parts.cancel()


class ReplayFilter:
    """Removes from a repeated answer what its client has already."""

    def __init__(self) -> None:
        self._characters, self._tokens, self._logprobs = (ReplayCounter() for _ in range(3))

    def restart(self) -> None:
        """Expect the answer from its beginning."""
        for counter in (self._characters, self._tokens, self._logprobs):
            counter.seen = 0

    def unseen(self, delta: AnswerDelta) -> AnswerDelta:
        """Return what is new in a part."""
        text = delta.text[self._characters.add(len(delta.text)) :]
        logprobs = delta.logprobs[self._logprobs.add(len(delta.logprobs)) :]
        seen, trace = self._tokens.add(len(delta.tokens)), dict(delta.trace)
        if tokens := trace.get("trace", {}).get("tokens"):
            new = tokens[seen:]
            trace = {"trace": trace["trace"] | {"tokens": new}} if new else {}
        return AnswerDelta(text, trace, logprobs, delta.tokens[seen:])


@dataclass(slots=True)
class ReplayCounter:
    """Counts items that were sent to a client, and those `seen` in this attempt."""

    sent: int = 0
    seen: int = 0

    def add(self, count: int) -> int:
        """Count the next items. Returns how many of them were sent before; it may be more than
        `count`."""
        sent_before = max(0, self.sent - self.seen)
        self.seen += count
        self.sent = max(self.sent, self.seen)
        return sent_before


def serve_replicas(spec: ServeSpec, keys: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT, and then finish running answers; a second signal ends them.

    Replicas run on the machines of the cluster that RAY_ADDRESS names, or else on this one.
    """
    spec = msgspec.structs.replace(spec, artifact=spec.artifact.resolve())
    manifest = Manifest.read(spec.artifact)
    slots = manifest.max_batch_size
    settings = ReplicaSettings(spec=spec, keys=keys, gpus=gpus_of(manifest), slots=slots)
    signals: list[int] = []
    ray.init(include_dashboard=False, logging_level=logging.WARNING)
    for number in (signal.SIGTERM, signal.SIGINT):  # Ray has set its own
        signal.signal(number, lambda number, frame: signals.append(number))
    handle = deploy(settings)
    log.info("serving at http://%s:%d with %d replicas", spec.host, spec.port, spec.replicas)
    while not signals:
        time.sleep(POLL)
    while handle.drain.remote(len(signals) > 1).result():
        time.sleep(POLL)
    serve.shutdown()
    ray.shutdown()
    forget(settings.key)


def deploy(settings: ReplicaSettings) -> "DeploymentHandle[Front]":
    """Start the front and the replicas, once Ray runs. Raises EagleError where that fails."""
    host, port = settings.spec.host, settings.spec.port
    try:
        with suppress(TimeoutError):  # a minute was not enough for its proxy; `run` waits as well
            serve.start(http_options={"host": host, "port": port}, logging_config=QUIET)
        return run(settings)
    except (RuntimeError, TimeoutError, RayError) as error:  # with all that replicas were doing
        last = str(error).strip().rpartition("\n")[2]
        raise EagleError(
            f"{host}:{port}: Ray cannot serve there, as the log says: {last}"
        ) from error


def run(settings: ReplicaSettings) -> "DeploymentHandle[Front]":
    """Run the front and the replicas. Returns when they are ready."""
    replica = serve.deployment(Replica).options(
        num_replicas=settings.spec.replicas,
        max_ongoing_requests=2 * settings.slots,
        ray_actor_options={"num_gpus": settings.gpus, "num_cpus": 1},
        request_router_config=BY_CONVERSATION,
        health_check_period_s=2,
    )
    front = serve.deployment(Front).options(
        num_replicas=1, max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )
    return serve.run(
        front.bind(settings, replica.bind(settings)), name="eagle-aot", logging_config=QUIET
    )
