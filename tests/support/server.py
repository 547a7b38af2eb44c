"""`eagle-serve` in a process of its own."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from openai import OpenAI

from eagle_aot.lab.serving import serving

SECONDS = 120.0


class Server:
    """A server that listens; `client` is OpenAI's own, `http` sends any request."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, key: str) -> None:
        self.process, self.url = process, url
        self.client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=SECONDS)
        self.http = httpx.Client(base_url=url, timeout=SECONDS)

    @property
    def model(self) -> str:
        """The name of the server's model."""
        (model,) = self.client.models.list().data
        return model.id

    def metric(self, name: str) -> float:
        """The value of a line of /metrics, 0 where there is none."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[1]) for line in lines if line.split()[0] == name)

    def stop(self, sig: int = signal.SIGTERM) -> None:
        """Send the server a signal."""
        self.process.send_signal(sig)


@contextmanager
def served(artifact: Path, *arguments: str, key: str = "none") -> Iterator[Server]:
    """A server that has begun to listen; it is killed at the end if it still runs."""
    with serving(artifact, *arguments) as (process, url):
        server = Server(process, url, key)
        try:
            yield server
        finally:
            server.http.close()
            server.client.close()
