"""`eagle-serve` in a process of its own."""

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
SECONDS = 300.0  # until it listens
DRAINED = 60.0  # seconds, once it is told to end
SAID = 2000  # characters of its log that are told
Process = subprocess.Popen[str]


@contextmanager
def serving(
    artifact: Path, *arguments: str, log: IO[str] | None = None
) -> Iterator[tuple[Process, str]]:
    """A server that has begun to listen, and its URL; at the end it is told to end. What it logs
    goes to a file, or else to the process's `stderr`. Raises UnsupportedError where it does not
    come up."""
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
        if not comes_up(process, url):
            raise UnsupportedError(f"the server does not answer: {last_words(process, log)}")
        yield process, url
    finally:
        end(process)


def comes_up(process: Process, url: str) -> bool:
    """Whether it answers, soon enough."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return True
        except httpx.TransportError:
            time.sleep(0.1)
    return False


def last_words(process: Process, log: IO[str] | None) -> str:
    """The end of its log, once it has ended."""
    end(process)
    if log is None:
        return process.communicate()[1][-SAID:]
    log.seek(0)
    return log.read()[-SAID:]


def end(process: Process) -> None:
    """As it ends by itself, or soon after."""
    process.terminate()
    try:
        process.wait(DRAINED)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
