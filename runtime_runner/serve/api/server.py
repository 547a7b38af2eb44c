"""The server of one process: it listens, logs when it is ready, and finishes what it began."""

import asyncio
import json
import logging
from collections.abc import Sequence
from socket import socket
from types import FrameType

import uvicorn

from eagle_aot.common.errors import EagleError, reason
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.api.connections import (
    ConnectionLimits,
    LimitedConfig,
    accepted_at_once,
)
from eagle_aot.runtime_runner.serve.service import LocalService
from eagle_aot.runtime_runner.serve.spec import ServeSpec

log = logging.getLogger(__name__)
BACKLOG = 1024
"""Connections that the system keeps until they are accepted."""
SHUTDOWN_SECONDS = 5
"""The time for sending responses after all requests have ended."""


class Server(uvicorn.Server):
    """A server that stops accepting requests at the first signal and finishes those it has. At the
    second signal it ends them with an error."""

    def __init__(self, config: uvicorn.Config, service: LocalService) -> None:
        super().__init__(config)
        self._service = service
        self._ends_requests = False

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to listen, and log that the server is ready."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        model = self._service.model
        host, port = model.spec.host, sockets[0].getsockname()[1] if sockets else 0
        log.info(
            "ready: %s at http://%s:%d, context of %d tokens, %d requests in parallel",
            model.name, f"[{host}]" if ":" in host else host, port, model.context,
            self._service.worker.slots,
        )  # fmt: skip
        log.info("requests sample by default with %s", json.dumps(model.sampling_defaults))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        worker = self._service.worker
        self._ends_requests = worker.draining
        worker.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called every tenth of a second."""
        worker = self._service.worker
        if worker.failure is not None:
            worker.end_all(EagleError("the server has failed"))
            return True
        if self._ends_requests:
            self._service.streams.end()
        if self._ends_requests or (worker.draining and not worker.pending):
            return True
        return await super().on_tick(counter)


def serve(
    runner: Runner, spec: ServeSpec, keys: Sequence[str], listeners: Sequence[socket]
) -> None:
    """Serve until SIGTERM or SIGINT, at sockets that are bound. Raises EagleError where they cannot
    be listened on."""
    asyncio.run(_serve(LocalService(runner, spec, keys), spec, listeners))


async def _serve(service: LocalService, spec: ServeSpec, listeners: Sequence[socket]) -> None:
    accepted, model = accepted_at_once(), service.model
    config = LimitedConfig(
        make_app(service),
        ConnectionLimits.of(model.max_body, accepted, service.metrics.connection_ended),
        backlog=accepted,  # which asyncio accepts at once
        log_config=None,
        lifespan="off",  # nothing begins or ends with it
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    service.worker.start()
    try:
        await Server(config, service).serve([*listeners])
        if (failure := service.failure) is not None:
            raise EagleError(f"the engine failed: {failure}: the log says more")
    except OSError as error:
        raise EagleError(
            f"{spec.host}:{spec.port}: cannot be listened on ({reason(error)})"
        ) from error
    finally:
        service.worker.close()
