"""`eagle-serve`: serves an artifact with the OpenAI API."""

import errno
import json
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from eagle_aot.common.command import check_installed
from eagle_aot.common.errors import SettingError, reason
from eagle_aot.common.spec import spec_command
from eagle_aot.runtime_runner.serve.on_ray import configure_ray
from eagle_aot.runtime_runner.serve.spec import ServeSpec

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.runner import Runner

log = logging.getLogger(__name__)
AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""An item of `socket.getaddrinfo`."""


@spec_command(ServeSpec)
def main(spec: ServeSpec) -> None:
    """Serve ARTIFACT: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, and a
    chat at /.

    \b
        eagle-serve gemma4-tiny-xnnpack
        eagle-serve ORG/NAME --host 0.0.0.0 --api-key-file keys.txt
    """
    for name in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
        check_installed(name, extra="serve")
    keys = spec.read_keys()
    log_to_stderr()
    listeners = bind(spec)
    log.info("loading %s for http://%s:%d", spec.artifact, spec.host, spec.port)
    if spec.replicas:
        configure_ray()
        check_installed("ray", extra="ray")
        from eagle_aot.runtime_runner.serve.on_ray.replicas import serve_replicas

        for listener in listeners:  # Ray binds its own
            listener.close()
        serve_replicas(spec, keys)
        return
    from eagle_aot.runtime_runner.serve.api.server import serve

    serve(load(spec), spec, keys, listeners)


def bind(spec: ServeSpec) -> list[socket.socket]:
    """Return sockets bound to all addresses of the host, which do not listen yet: a client is
    refused until the server is ready. Raises SettingError for an address that cannot be used."""
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    port = spec.port
    try:
        infos = socket.getaddrinfo(spec.host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        infos, problem = [], error
    for info in infos:
        try:
            sockets.append(bound(info, port))
            port = sockets[-1].getsockname()[1]  # one port for all, also where it is 0
        except OSError as error:  # localhost may have an address that this machine lacks
            problem = error if problem is None or error.errno != errno.EADDRNOTAVAIL else problem
    if problem is None or (sockets and problem.errno == errno.EADDRNOTAVAIL):
        return sockets
    for listener in sockets:
        listener.close()
    raise SettingError(
        f"{spec.host}:{spec.port}: cannot be listened on ({reason(problem)}): take another --port "
        "or --host"
    ) from problem


def bound(info: AddressInfo, port: int) -> socket.socket:
    """Return a socket that is bound to an address and a port. Raises OSError."""
    family, kind, protocol, _, address = info
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address[0], port, *address[2:]))
    except BaseException:
        listener.close()
        raise
    return listener


def load(spec: ServeSpec) -> "Runner":
    """Open the artifact, and make all its rounds unless that is switched off."""
    from eagle_aot.runtime_runner.load import load_artifact

    runner = load_artifact(spec.artifact, **spec.load_options)
    runner.adaptive_schedule(trees=False)  # measures costs while no request runs
    if not spec.no_warm_up:
        log.info("%s", runner.warm_up(chain_len="auto"))
    return runner


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
