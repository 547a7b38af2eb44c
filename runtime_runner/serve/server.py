"""The process: it listens until it is told to stop, and then lets running texts end."""

import asyncio
from types import FrameType

import uvicorn

from eagle_aot.common.errors import EagleError
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.serve.api.app import make_app
from eagle_aot.runtime_runner.serve.service import LocalService, Settings

POLL = 0.05  # seconds
LAST_BYTES = 5  # seconds that responses have once all texts have ended


class Server(uvicorn.Server):
    """Told to stop, it takes no more requests but answers those it has; told twice, it stops."""

    def __init__(self, config: uvicorn.Config, service: LocalService) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        worker = self._service.worker
        if worker.draining:
            self.force_exit = True
        worker.drain()

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second."""
        worker = self._service.worker
        if worker.draining and (self.force_exit or not worker.serving):
            return True
        return await super().on_tick(counter)


def serve(runner: Runner, settings: Settings, host: str, port: int) -> None:
    """Until SIGTERM or SIGINT. Raises EagleError where the address cannot be had."""
    asyncio.run(_serve(runner, settings, host, port))


async def _serve(runner: Runner, settings: Settings, host: str, port: int) -> None:
    service = LocalService(runner, settings)
    config = uvicorn.Config(
        make_app(service),
        host=host,
        port=port,
        log_config=None,
        lifespan="off",  # nothing begins or ends with it
        timeout_graceful_shutdown=LAST_BYTES,
    )
    service.worker.start()
    try:
        await Server(config, service).serve()
    except SystemExit as error:  # uvicorn's way of saying so
        raise EagleError(
            f"{host}:{port}: cannot be listened on, as the log says: take another --port or --host"
        ) from error
    finally:
        service.worker.close()
