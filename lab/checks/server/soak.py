"""A server under many clients: every text as it is alone, and how long clients wait.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 8
    eagle-serve gemma4-tiny-xnnpack &
    python scripts/write_prompts.py prompts.jsonl
    python -m eagle_aot.lab.checks.server.soak gemma4-tiny-xnnpack prompts.jsonl --minutes 10

Texts are first made one by one in this process. Clients then request them again and again, whole
and streamed, some with log probabilities. With --chaos some clients leave in mid-stream,
some read slowly, and some send half a request.
"""

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import click
import httpx
import msgspec
from rich.console import Console

from eagle_aot.common.spec import Option, check_fields, spec_command
from eagle_aot.lab.bench.server.measure import percentiles
from eagle_aot.lab.checks.server.clients import TIMEOUT, Client, RequestCounts, expected_answers
from eagle_aot.lab.header import header, title_lines

RESIDENT = "process_resident_memory_bytes"
SHOWN = 3  # problems


class SoakSpec(msgspec.Struct, kw_only=True, frozen=True):
    """The server, its clients, and how long they send requests."""

    artifact: Path
    prompts_jsonl: Path
    url: Annotated[str, Option("The server's URL.")] = "http://127.0.0.1:8000"
    clients: Annotated[int, Option("Clients in parallel.", least=1)] = 64
    minutes: Annotated[float, Option("How long clients send requests.")] = 10.0
    count: Annotated[int, Option("Different requests.", least=1)] = 120
    max_new_tokens: Annotated[int, Option("Output tokens of a request.", least=2)] = 48
    chaos: Annotated[bool, Option("Let clients disconnect or send half a request.")] = False
    commit: Annotated[
        str | None, Option("The version that the results name; default: git's.", metavar="TEXT")
    ] = None
    as_json: Annotated[bool, Option("Print one JSON object.", flag="--json")] = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakResult:
    """What happened in `seconds`.

    `memory` is the server's resident bytes before, after a tenth of the time, and at the end.
    """

    seconds: float
    counts: RequestCounts
    memory: Sequence[int]


@spec_command(SoakSpec)
def main(spec: SoakSpec) -> None:
    """Send requests to a server of ARTIFACT. Exits with 1 where an answer is lost or differs."""
    requests = expected_answers(spec.artifact, spec.prompts_jsonl, spec.count, spec.max_new_tokens)
    counts = RequestCounts()
    clients = [Client(spec.url, requests, counts, spec.chaos, seed) for seed in range(spec.clients)]
    result = soak(spec.url, clients, counts, 60 * spec.minutes)
    show(spec.artifact, result, spec.commit, spec.as_json)
    sys.exit(1 if counts.problems else 0)


def soak(url: str, clients: Sequence[Client], counts: RequestCounts, seconds: float) -> SoakResult:
    """Let all clients send requests for so long."""
    memory = [memory_of(url)]
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(len(clients)) as pool:
        futures = [pool.submit(client.send_until, end) for client in clients]
        time.sleep(seconds / 10)  # until caches of all kinds are warm
        memory.append(memory_of(url))
        for future in futures:
            future.result()
    memory.append(memory_of(url))
    return SoakResult(seconds=seconds, counts=counts, memory=memory)


def memory_of(url: str) -> int:
    """Return the server's resident bytes, by its own metrics."""
    lines = httpx.get(f"{url}/metrics", timeout=TIMEOUT).text.splitlines()
    (line,) = (line for line in lines if line.startswith(f"{RESIDENT} "))
    return int(float(line.split()[1]))


def show(artifact: Path, result: SoakResult, commit: str | None, as_json: bool) -> None:
    """Print the result as one JSON object, or as lines."""
    head, counts = header(f"{artifact.name}, served", commit), result.counts
    speed = counts.tokens / result.seconds
    waits = {"first_token_s": percentiles(counts.first), "answer_s": percentiles(counts.whole)}
    if as_json:
        memory = zip(("before", "early", "late"), result.memory, strict=True)
        figures = {
            "requests": dict(counts.ends),
            "tokens_per_second": speed,
            **waits,
            "memory": dict(memory),
            "problems": counts.problems[:SHOWN],
        }
        click.echo(json.dumps({**asdict(head), **figures}))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(*title_lines(head), "", sep="\n")
    console.print(", ".join(f"{number:,} {end}" for end, number in counts.ends.most_common()))
    console.print(f"{speed:,.0f} tokens/s")
    for name, values in waits.items():
        shown = ", ".join(f"{key} {value:.2f}" for key, value in values.items())
        console.print(f"{name}: {shown}")
    memory_mb = ", ".join(f"{size / 1e6:,.0f}" for size in result.memory)
    console.print(f"memory, MB: {memory_mb} (before, after a tenth of the time, at the end)")
    for problem in counts.problems[:SHOWN]:
        console.print(problem, markup=False)


if __name__ == "__main__":
    main()
