"""A program that decodes, in a process of its own: its threads wait on nobody else's cores."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from eagle_aot.common.errors import UnsupportedError

SCRIPTS = Path(__file__).resolve().parents[1]


class Worker:
    """Started and ready. `load_seconds` is how long that took, imports included."""

    def __init__(self, name: str, command: list[str]) -> None:
        """Raises UnsupportedError where it does not come up, with the last it said."""
        paths = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        started = time.perf_counter()
        self.name = name
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self.version = str(self._answer()["version"])
        self.load_seconds = time.perf_counter() - started

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, as `serve` takes and gives them."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def resident_bytes(self) -> int:
        """Of memory, mapped files that were read included."""
        found = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self._process.pid)],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(found.stdout) * 1024

    def close(self) -> None:
        """It ends when there is nothing more to read."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self._said.seek(0)
        last = self._said.read().strip().split("\n")[-1]
        raise UnsupportedError(f"{self.name}: ended with {self._process.wait()}: {last}")
