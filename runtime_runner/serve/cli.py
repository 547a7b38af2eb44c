"""`eagle-serve`: an artifact behind the OpenAI API."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eagle_aot.common.command import check_installed, eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.runtime_runner.options import drafter_option

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.runner import Runner
    from eagle_aot.runtime_runner.serve.service import Settings

MOST_KEY_BYTES = 1 << 20


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on; 0.0.0.0 for all.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--model", metavar="NAME", help="What requests call it; default: the directory's name."
)
@click.option("--api-key-file", type=click.Path(path_type=Path), metavar="FILE",
              help="Keys, one a line, of which a request must show one.")  # fmt: skip
@click.option("--max-waiting", type=click.IntRange(min=0), default=64, show_default=True,
              metavar="N", help="Requests that may wait; more are told to come again.")  # fmt: skip
@click.option("--request-timeout", type=click.FloatRange(min=0, min_open=True), default=600.0,
              show_default=True, metavar="S", help="Seconds, from asking to the end.")  # fmt: skip
@click.option("--max-body", type=click.IntRange(min=1024), default=8 << 20, show_default=True,
              metavar="BYTES", help="Of a request.")  # fmt: skip
@click.option("--prompt-share", type=float, default=0.45, show_default=True, metavar="S",
              help="Of the time, for prompts beside answers.")  # fmt: skip
@click.option("--no-reuse", "reuse", is_flag=True, flag_value=False, default=True,
              help="Run every prompt whole, whatever caches hold of it.")  # fmt: skip
@drafter_option
@click.option("--executor", type=click.Choice(["auto", "aoti", "executorch"]), default="auto",
              show_default=True)  # fmt: skip
@click.option("--replicas", type=click.IntRange(min=1), metavar="N",
              help="Engines, each with a GPU of its own where there are any: on Ray.")  # fmt: skip
@click.option("--no-warm-up", is_flag=True, help="Record each round when it is first needed.")
def main(artifact: Path, host: str, port: int, **given: Any) -> None:
    """Serve ARTIFACT: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, and a
    page to look at."""
    for name in ("fastapi", "prometheus_client", "uvicorn"):
        check_installed(name, extra="serve")
    keys = read_keys(given["api_key_file"])
    log_to_stderr()
    if given["replicas"]:
        serve_many(artifact, keys, host, port, given)
    else:
        serve_one(artifact, keys, host, port, given)


def serve_one(
    artifact: Path, keys: tuple[str, ...], host: str, port: int, given: dict[str, Any]
) -> None:
    """In this process."""
    from eagle_aot.runtime_runner.serve.server import serve

    serve(load(artifact, given), settings(artifact, keys, given), host, port)


def serve_many(
    artifact: Path, keys: tuple[str, ...], host: str, port: int, given: dict[str, Any]
) -> None:
    """On Ray."""
    check_installed("ray", extra="ray")
    from eagle_aot.artifact import Manifest
    from eagle_aot.runtime_runner.serve.on_ray.machine import gpus_of
    from eagle_aot.runtime_runner.serve.on_ray.replicas import Replicas, serve_replicas

    manifest = Manifest.read(artifact)
    replicas = Replicas(
        artifact=artifact.resolve(),
        count=given["replicas"],
        gpus=gpus_of(manifest),
        caches=manifest.max_batch_size,
        settings=settings(artifact, keys, given),
        load=load_options(given),
    )
    serve_replicas(replicas, host, port)


def read_keys(path: Path | None) -> tuple[str, ...]:
    """Those of a file. Raises SettingError where there is none in it."""
    if path is None:
        return ()
    try:
        content = path.read_bytes()[:MOST_KEY_BYTES].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--api-key-file {path}: cannot be read ({error})") from error
    keys = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not keys:
        raise SettingError(f"--api-key-file {path}: holds no keys")
    return keys


def load(artifact: Path, given: dict[str, Any]) -> "Runner":
    """The artifact, opened, and all its rounds made."""
    from eagle_aot.runtime_runner.load import load_artifact

    runner = load_artifact(artifact, **load_options(given))
    runner.adaptive_schedule(trees=False)  # measured while no request runs
    if not given["no_warm_up"]:
        logging.getLogger(__name__).info("%s", runner.warm_up())
    return runner


def load_options(given: dict[str, Any]) -> dict[str, Any]:
    """Of `load_artifact`."""
    return {name: given[name] for name in ("executor", "drafter", "prompt_share", "reuse")}


def settings(artifact: Path, keys: tuple[str, ...], given: dict[str, Any]) -> "Settings":
    """Of the server."""
    from eagle_aot.runtime_runner.serve.service import Settings

    return Settings(
        model=given["model"] or artifact.resolve().name,
        keys=keys,
        most_waiting=given["max_waiting"],
        request_seconds=given["request_timeout"],
        body_bytes=given["max_body"],
    )


def log_to_stderr() -> None:
    """One JSON object a line."""
    from eagle_aot.runtime_runner.serve.log import JsonLines

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.disable(logging.NOTSET)


if __name__ == "__main__":
    main()
