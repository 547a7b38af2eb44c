"""Several engines, with Ray Serve and Ray Data. Importing this package does not import Ray."""

import os
import secrets
import sys

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's setting that is 0 where a node cannot be part of a cluster. Its sockets are then bound to
127.0.0.1."""


def configure_ray() -> None:
    """Let Ray listen on the loopback interface alone, require a token and give its HTTP proxy time
    to start, unless RAY_ADDRESS names a cluster. Call it before Ray is imported."""
    if os.environ.get("RAY_ADDRESS"):
        return
    if "ray" not in sys.modules:
        os.environ[LOOPBACK] = "0"
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "300")  # 5 by default
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if not os.environ.get("RAY_AUTH_TOKEN_PATH"):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex())


def secure_replica() -> None:
    """Bind the socket for calls between deployments to the loopback interface as well.

    Ray Serve opens it in the process of each of them, after its constructor, for all interfaces.
    """
    if os.environ.get(LOOPBACK) != "0":
        return
    from grpc.aio._server import Server  # its public base class does not open ports

    add_port = Server.add_insecure_port

    def add_port_on_loopback(server: Server, address: str) -> int:
        return int(add_port(server, address.replace("[::]", "127.0.0.1")))

    Server.add_insecure_port = add_port_on_loopback
