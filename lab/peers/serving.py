"""The side of a program that decodes: a request a line on stdin, an answer a line on stdout."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Told = Callable[[list[int]], None]
"""What is handed every run of new tokens as it is known."""


def serve(version: str, decode: Callable[[dict[str, Any], Told], None]) -> None:
    """Say that one is ready, then decode every request: `tokens`, `max_new_tokens` and what else
    this program takes. The first run of tokens is what ends the prompt."""
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        tokens, times = list[int](), [time.perf_counter()]

        def tell(run: list[int], tokens: list[int] = tokens, times: list[float] = times) -> None:
            tokens.extend(run)
            times.append(time.perf_counter())

        decode(json.loads(line), tell)
        seconds = {
            "prompt_seconds": times[1] - times[0],
            "decode_seconds": times[-1] - times[1],
        }
        print(json.dumps({"tokens": tokens, **seconds}), flush=True)
