"""Many engines behind one application, on Ray Serve.

A front answers requests; each of its texts is one replica's, which has an engine, and on machines
with GPUs one of them. What a replica had not ended when it died is asked of another one. Since a
text depends on the request alone, that one's is the same, and goes on where the first broke off.
"""

import asyncio
import contextvars
import functools
import logging
import secrets
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from eagle_aot.artifact.verified import forget
from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner.engine import Failed
from eagle_aot.runtime_runner.serve.answers import Answers, Item, Piece
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.metrics import Metrics
from eagle_aot.runtime_runner.serve.on_ray.machine import open_artifact
from eagle_aot.runtime_runner.serve.on_ray.told import Told
from eagle_aot.runtime_runner.serve.service import LocalService, Model, Settings, Work
from eagle_aot.runtime_runner.serve.worker import check_room

log = logging.getLogger(__name__)
ATTEMPTS = 8
"""Of one text: what kills every replica that it comes to does not go round for ever."""
POLL = 0.1  # seconds
BY_CONVERSATION = RequestRouterConfig(
    request_router_class="ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
)
"""The cache that holds its earlier turns is one replica's."""
QUIET = {"encoding": "JSON", "log_level": "WARNING"}
DIED = RayActorError, DeploymentUnavailableError


@dataclass(frozen=True, kw_only=True, slots=True)
class Replicas:
    """So many, each with `gpus` of a machine's and caches for `caches` texts. `load` are options of
    `load_artifact`; by the `key` they believe one another that the artifact is verified."""

    artifact: Path
    count: int
    gpus: float
    caches: int
    settings: Settings
    load: dict[str, Any]
    key: str = field(default_factory=secrets.token_hex)


class Replica:
    """One engine."""

    def __init__(self, replicas: Replicas) -> None:
        runner = open_artifact(replicas.artifact, replicas.key, **replicas.load)
        runner.adaptive_schedule(trees=False)  # measured while nobody runs
        runner.warm_up()
        self._service = LocalService(runner, replicas.settings)
        self._service.worker.start()

    async def parts(self, work: Work) -> AsyncIterator[Item]:
        """Of a text by itself. What `Service.begin` and `Answers.parts` raise is the last of them:
        raised, it would be a failure of the replica."""
        try:
            answers = self._service.begin(work)
        except Exception as error:
            yield error
            return
        try:
            async for _, part in answers.parts():
                yield part
        except Exception as error:
            yield error
        finally:
            answers.close()


@serve.ingress()
class Front:
    """The application."""

    def __init__(self, replicas: Replicas, handle: DeploymentHandle[Replica]) -> None:
        self._service = ReplicatedService(replicas, handle)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(self._service)

    async def drain(self) -> int:
        """Take no more requests; how many have not ended."""
        self._service.draining = True
        return self._service.serving


class ReplicatedService:
    """By whichever replica the conversation belongs to."""

    def __init__(self, replicas: Replicas, handle: DeploymentHandle[Replica]) -> None:
        self.model = Model(replicas.artifact, replicas.settings)
        self.metrics = Metrics(self)
        self.caches = replicas.caches * replicas.count
        self.draining = False
        self._most = self.caches + replicas.settings.most_waiting
        self._handle = handle.options(stream=True)
        self._texts: set[asyncio.Task[None]] = set()

    @property
    def serving(self) -> int:
        """Texts that have not ended."""
        return len(self._texts)

    @property
    def waiting(self) -> int:
        """As many of them as there are no caches for."""
        return max(0, self.serving - self.caches)

    def begin(self, work: Work) -> Answers:
        check_room(len(work.asked), self.serving, self._most, self.draining)
        answers = Answers(len(work.asked), self.model.settings.request_seconds, self.metrics)
        texts = [
            asyncio.create_task(
                self._answer(answers, index, replace(work, asked=[asked])),
                context=contextvars.Context(),  # Ray routes one call for each request it knows of
            )
            for index, asked in enumerate(work.asked)
        ]
        for text in texts:
            self._texts.add(text)
            text.add_done_callback(self._texts.discard)
        answers.cancel = functools.partial(cancel, texts)
        return answers

    async def _answer(self, answers: Answers, index: int, work: Work) -> None:
        told = Told()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async for part in self._parts(work):
                    answers.put(index, told.rest(part) if isinstance(part, Piece) else part)
                return
            except DIED as error:
                died = type(error).__name__  # whose text is a page of Ray's
                log.warning("a replica died under a text, attempt %d: %s", attempt, died)
                told.again()
                await asyncio.sleep(POLL * attempt)
            except Exception as error:
                answers.put(index, error)
                return
        answers.put(index, Failed(index, f"{ATTEMPTS} replicas died under it", RuntimeError()))

    async def _parts(self, work: Work) -> AsyncIterator[Item]:
        handle = self._handle
        if work.conversation is not None:
            handle = handle.options(session_id=work.conversation)
        parts = handle.parts.remote(work)
        try:
            async for part in parts:
                yield part
        finally:
            parts.cancel()


def cancel(texts: Sequence[asyncio.Task[None]]) -> None:
    """Those that have not ended."""
    for text in texts:
        text.cancel()


def serve_replicas(replicas: Replicas, host: str, port: int) -> None:
    """Until SIGTERM or SIGINT, behind which running texts end; until the second one. On the
    machines of the cluster that RAY_ADDRESS names, or else on this one."""
    told: list[int] = []
    ray.init(include_dashboard=False, logging_level=logging.WARNING)
    for number in (signal.SIGTERM, signal.SIGINT):  # Ray has set its own
        signal.signal(number, lambda number, frame: told.append(number))
    handle = deploy(replicas, host, port)
    log.info("serving at http://%s:%d with %d replicas", host, port, replicas.count)
    while not told:
        time.sleep(POLL)
    while len(told) < 2 and handle.drain.remote().result():
        time.sleep(POLL)
    serve.shutdown()
    ray.shutdown()
    forget(replicas.key)


def deploy(replicas: Replicas, host: str, port: int) -> "DeploymentHandle[Front]":
    """Start all of it where Ray has been. Raises EagleError where that fails."""
    try:
        serve.start(http_options={"host": host, "port": port}, logging_config=QUIET)
        return run(replicas)
    except RuntimeError as error:  # what replicas raise too, with all that they were doing
        last = str(error).strip().rpartition("\n")[2]
        raise EagleError(
            f"{host}:{port}: Ray cannot serve there, as the log says: {last}"
        ) from error


def run(replicas: Replicas) -> "DeploymentHandle[Front]":
    """Once they are ready."""
    one = serve.deployment(Replica).options(
        num_replicas=replicas.count,
        max_ongoing_requests=2 * replicas.caches,
        ray_actor_options={"num_gpus": replicas.gpus, "num_cpus": 1},
        request_router_config=BY_CONVERSATION,
        health_check_period_s=2,
    )
    front = serve.deployment(Front).options(
        num_replicas=1, max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )
    return serve.run(
        front.bind(replicas, one.bind(replicas)), name="eagle-aot", logging_config=QUIET
    )
