"""Run `eagle-serve` in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

from eagle_aot.common.errors import UnsupportedError

MODULE = "eagle_aot.runtime_runner.serve.cli"
START_TIMEOUT = 300.0  # seconds
STOP_TIMEOUT = 60.0  # seconds
LOG_TAIL = 2000  # characters
Process = subprocess.Popen[str]


@contextmanager
def serving(
    artifact: Path, *arguments: str, log: IO[str] | None = None
) -> Iterator[tuple[Process, str]]:
    """Start a server, and yield its process and URL once it answers; stop it at the end.

    It logs to a file, or to the process's `stderr`. Raises UnsupportedError where it does not
    start.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", MODULE, str(artifact), "--port", str(port), *arguments]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    errors = subprocess.PIPE if log is None else log
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=errors, text=True, env=os.environ | paths
    )
    url = f"http://127.0.0.1:{port}"
    try:
        if not answers(process, url):
            raise UnsupportedError(f"the server does not answer: {log_tail(process, log)}")
        yield process, url
    finally:
        stop(process)


def answers(process: Process, url: str) -> bool:
    """Wait until the server answers; return whether that came in time."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return True
        except httpx.TransportError:
            time.sleep(0.1)
    return False


def log_tail(process: Process, log: IO[str] | None) -> str:
    """Stop the server, and return the end of its log."""
    stop(process)
    if log is None:
        return process.communicate()[1][-LOG_TAIL:]
    log.seek(0)
    return log.read()[-LOG_TAIL:]


def stop(process: Process) -> None:
    """Terminate a process, and kill it where that takes too long."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
