"""The process of a server: it listens until it is stopped, and then finishes running requests."""

import asyncio
from types import FrameType

import uvicorn

from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.service import LocalService, ServerSettings

SHUTDOWN_SECONDS = 5
"""The time that responses have after all requests have ended."""


class Server(uvicorn.Server):
    """At the first signal it accepts no more requests but answers those it has; at the second one
    it stops."""

    def __init__(self, config: uvicorn.Config, service: LocalService) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        worker = self._service.worker
        if worker.draining:
            self.force_exit = True
        worker.drain()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called every tenth of a second."""
        worker = self._service.worker
        if worker.draining and (self.force_exit or not worker.pending):
            return True
        return await super().on_tick(counter)


def serve(runner: Runner, settings: ServerSettings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT. Raises EagleError where the address cannot be used."""
    asyncio.run(_serve(runner, settings, host, port))


async def _serve(runner: Runner, settings: ServerSettings, host: str, port: int) -> None:
    service = LocalService(runner, settings)
    config = uvicorn.Config(
        make_app(service),
        host=host,
        port=port,
        log_config=None,
        lifespan="off",  # nothing begins or ends with it
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    service.worker.start()
    try:
        await Server(config, service).serve()
    except SystemExit as error:  # how uvicorn reports it
        raise EagleError(
            f"{host}:{port}: cannot be listened on, as the log says: take another --port or --host"
        ) from error
    finally:
        service.worker.close()
