"""`eagle-serve`: serves an artifact with the OpenAI API."""

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import SettingError
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.runtime_runner.spec import ENGINE, ArtifactSpec

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.runner import Runner
    from eagle_aot.runtime_runner.serve.service import ServerSettings

MAX_KEY_BYTES = 1 << 20
SERVER = "Server"


class ServeSpec(ArtifactSpec, kw_only=True, frozen=True):
    """What to serve, where, and how much of it at once."""

    host: Annotated[str, Option("Address to listen on; 0.0.0.0 for all.", SERVER)] = "127.0.0.1"
    port: Annotated[int, Option("Port to listen on.", SERVER, least=0, most=65535)] = 8000
    model: Annotated[
        str | None,
        Option("The model's name in requests; default: the directory's name.", SERVER, "NAME"),
    ] = None
    api_key_file: Annotated[
        Path | None,
        Option("API keys, one a line; a request must have one of them.", SERVER, "FILE"),
    ] = None
    max_waiting: Annotated[
        int,
        Option("Requests that may wait; more get status 429.", SERVER, "N", least=0),
    ] = 64
    request_timeout: Annotated[
        float, Option("Seconds from a request to the end of its answer.", SERVER, "S", least=1e-3)
    ] = 600.0
    max_body: Annotated[
        int, Option("Bytes of a request.", SERVER, "BYTES", least=1024)
    ] = 8 << 20  # fmt: skip
    prompt_share: Annotated[
        float,
        Option("Part of the time for prompts while answers are generated.", ENGINE, "S"),
    ] = 0.45
    no_reuse: Annotated[
        bool, Option("Run every prompt whole, without the prefix cache.", ENGINE)
    ] = False  # fmt: skip
    replicas: Annotated[
        int | None,
        Option("Engines, each with a GPU of its own where there are any; runs on Ray.", ENGINE,
               "N", least=1),
    ] = None  # fmt: skip
    no_warm_up: Annotated[
        bool, Option("Record each round when it is first needed.", ENGINE)
    ] = False  # fmt: skip

    def settings(self) -> "ServerSettings":
        """Return the settings of the server. Raises SettingError as `read_keys` does."""
        from eagle_aot.runtime_runner.serve.service import ServerSettings

        return ServerSettings(
            model=self.model or self.artifact.resolve().name,
            keys=() if self.api_key_file is None else read_keys(self.api_key_file),
            max_waiting=self.max_waiting,
            request_seconds=self.request_timeout,
            max_body_bytes=self.max_body,
        )

    def load_options(self) -> dict[str, Any]:
        """Return the options of `load_artifact`."""
        return {
            "executor": self.executor,
            "drafter": self.drafter,
            "prompt_share": self.prompt_share,
            "reuse": not self.no_reuse,
        }


@spec_command(ServeSpec)
def main(spec: ServeSpec) -> None:
    """Serve ARTIFACT: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, and a
    page to look at."""
    for name in ("fastapi", "prometheus_client", "uvicorn"):
        check_installed(name, extra="serve")
    settings = spec.settings()
    log_to_stderr()
    if spec.replicas:
        serve_replicas(spec, settings, spec.replicas)
        return
    from eagle_aot.runtime_runner.serve.server import serve

    serve(load(spec), settings, spec.host, spec.port)


def serve_replicas(spec: ServeSpec, settings: "ServerSettings", count: int) -> None:
    """Serve with `count` engines on Ray."""
    check_installed("ray", extra="ray")
    from eagle_aot.artifact import Manifest
    from eagle_aot.runtime_runner.serve.on_ray import replicas
    from eagle_aot.runtime_runner.serve.on_ray.actors import gpus_of

    manifest = Manifest.read(spec.artifact)
    replica_settings = replicas.ReplicaSettings(
        artifact=spec.artifact.resolve(),
        count=count,
        gpus=gpus_of(manifest),
        slots=manifest.max_batch_size,
        server=settings,
        load=spec.load_options(),
    )
    replicas.serve_replicas(replica_settings, spec.host, spec.port)


def load(spec: ServeSpec) -> "Runner":
    """Open the artifact, and make all its rounds unless that is switched off."""
    from eagle_aot.runtime_runner.load import load_artifact

    runner = load_artifact(spec.artifact, **spec.load_options())
    runner.adaptive_schedule(trees=False)  # measures costs while no request runs
    if not spec.no_warm_up:
        logging.getLogger(__name__).info("%s", runner.warm_up())
    return runner


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the API keys in a file. Raises SettingError where there are none."""
    try:
        content = path.read_bytes()[:MAX_KEY_BYTES].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--api-key-file {path}: cannot be read ({error})") from error
    keys = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not keys:
        raise SettingError(f"--api-key-file {path}: has no keys")
    return keys


class JsonLines(logging.Formatter):
    """A JSON object a line: `time` in UTC, `level`, `logger`, `message`, the record's `fields`, and
    `error`, the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr() -> None:
    """Write the log to stderr, one JSON object a line."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.disable(logging.NOTSET)


if __name__ == "__main__":
    main()
