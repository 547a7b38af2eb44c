"""A server under many clients: each text as alone, nothing leaked, and how long clients wait.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 8 --output-dir tiny
    python scripts/write_prompts.py prompts.jsonl
    python -m eagle_aot.lab.checks.server.soak tiny prompts.jsonl --minutes 10 --chaos

Texts are first made one by one in this process. Clients then request them again and again, whole
and streamed, half of them in a given form, some with log probabilities. With --chaos some clients
leave, before their first token or in mid-stream, some read slowly, and some send half a request. At
the end the server must have as much memory and as many descriptors and threads as after a tenth of
the time, all its caches must be free, and SIGTERM must end it.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import click
import httpx
import msgspec
from rich.console import Console

from eagle_aot.common.spec import Option, check_fields, spec_command
from eagle_aot.lab.bench.server.measure import percentiles
from eagle_aot.lab.checks.server.clients import (
    TIMEOUT,
    Client,
    ExpectedAnswer,
    RequestCounts,
    expected_answers,
)
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.serving import STOP_TIMEOUT, Process, serving

RESIDENT = "process_resident_memory_bytes"
MORE_MEMORY, MORE_BYTES = 0.05, 64 << 20
"""How much more memory may be resident at the end than early, as a part and in bytes: allocators
keep some of what the most requests in parallel needed."""
MORE_DESCRIPTORS = 2  # of this process's own connections
MORE_THREADS = 8  # of a pool that grows with the requests in parallel, and stays
SETTLE_SECONDS = 30.0
SHOWN = 3  # problems
PARTS = 10
"""The time is divided so; the server is sampled after each part."""


class SoakSpec(msgspec.Struct, kw_only=True, frozen=True):
    """The server, its clients, and how long they send requests."""

    artifact: Path
    prompts_jsonl: Path
    url: Annotated[str | None, Option("A running server; default: one is started.")] = None
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
class ServerSample:
    """What a server holds: resident bytes, open descriptors, threads (None for a server that was
    not started here), requests that have not ended, and requests that have no cache."""

    memory: int
    descriptors: int
    threads: int | None
    pending: int
    waiting: int

    @classmethod
    def of(cls, url: str, process: Process | None) -> "ServerSample":
        """Ask a server."""
        lines = httpx.get(f"{url}/metrics", timeout=TIMEOUT).text.splitlines()
        values = dict(line.split() for line in lines if line.count(" ") == 1)
        threads = None
        if process is not None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            threads = int(status.partition("Threads:")[2].split()[0])
        names = RESIDENT, "process_open_fds", "eagle_requests_in_progress", "eagle_requests_waiting"
        memory, descriptors, pending, waiting = (int(float(values[name])) for name in names)
        return cls(
            memory=memory,
            descriptors=descriptors,
            threads=threads,
            pending=pending,
            waiting=waiting,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakResult:
    """What happened in `seconds`.

    `samples` are of the server before, after each tenth of the time but the last, and when all
    clients have left.
    """

    seconds: float
    counts: RequestCounts
    samples: Sequence[ServerSample]

    def leaks(self) -> Iterator[str]:
        """Describe what the server still holds."""
        before, early, *_, late = self.samples
        if late.memory > early.memory * (1 + MORE_MEMORY) + MORE_BYTES:
            yield f"memory grew from {early.memory / 1e6:,.0f} to {late.memory / 1e6:,.0f} MB"
        if late.descriptors > before.descriptors + MORE_DESCRIPTORS:
            yield f"{late.descriptors} descriptors are open, {before.descriptors} were before"
        if (late.threads or 0) > (early.threads or 0) + MORE_THREADS:
            yield f"{late.threads} threads run, {early.threads} did early"
        if late.pending:
            yield f"{late.pending} requests have not ended"


@spec_command(SoakSpec)
def main(spec: SoakSpec) -> None:
    """Send requests to a server of ARTIFACT. Exits with 1 where an answer is lost or differs, or
    where something is leaked."""
    requests = expected_answers(spec.artifact, spec.prompts_jsonl, spec.count, spec.max_new_tokens)
    counts = RequestCounts()
    with tempfile.TemporaryFile("w+") as log, ExitStack() as stack:
        process, url = None, spec.url
        if url is None:
            options = "--max-waiting", str(spec.clients), "--sampling-defaults", "openai"
            process, url = stack.enter_context(serving(spec.artifact, *options, log=log))
        before = ServerSample.of(url, process)
        clients = [Client(url, requests, counts, spec.chaos, seed) for seed in range(spec.clients)]
        result = soak(url, process, before, clients, counts, 60 * spec.minutes)
        problems = [*result.leaks(), *lost_caches(url, requests[0])]
        if process is not None:
            process.terminate()
            if (status := process.wait(STOP_TIMEOUT)) != 0:
                problems.append(f"the server ended with {status}")
    counts.problems[:0] = problems
    show(spec.artifact, result, spec.commit, spec.as_json)
    sys.exit(1 if counts.problems else 0)


def soak(
    url: str,
    process: Process | None,
    before: ServerSample,
    clients: Sequence[Client],
    counts: RequestCounts,
    seconds: float,
) -> SoakResult:
    """Let all clients send requests for so long."""
    samples, end = [before], time.monotonic() + seconds
    with ThreadPoolExecutor(len(clients)) as pool:
        futures = [pool.submit(client.send_until, end) for client in clients]
        for _ in range(PARTS - 1):  # after the first, caches of all kinds are warm
            time.sleep(seconds / PARTS)
            samples.append(ServerSample.of(url, process))
        for future in futures:
            future.result()
    for client in clients:
        client.close()
    deadline = time.monotonic() + SETTLE_SECONDS
    late = ServerSample.of(url, process)
    while time.monotonic() < deadline and (late.pending or late.descriptors > before.descriptors):
        time.sleep(0.2)
        late = ServerSample.of(url, process)
    return SoakResult(seconds=seconds, counts=counts, samples=[*samples, late])


def lost_caches(url: str, request: ExpectedAnswer) -> Iterator[str]:
    """Describe caches that no request gets any more: with as many long requests as the server has
    caches, none waits."""
    lines = httpx.get(f"{url}/metrics", timeout=TIMEOUT).text.splitlines()
    (line,) = (line for line in lines if line.startswith("eagle_caches "))
    caches = int(float(line.split()[1]))
    with ExitStack() as stack:
        client = Client(url, [request], RequestCounts(), False, 0)
        stack.callback(client.close)
        for _ in range(caches):
            chunks = stack.enter_context(client.open_long(request))
            next(iter(chunks))
        sample = ServerSample.of(url, None)
    if (sample.pending, sample.waiting) != (caches, 0):
        yield f"{caches} requests for {caches} caches: {sample.waiting} of {sample.pending} wait"


def show(artifact: Path, result: SoakResult, commit: str | None, as_json: bool) -> None:
    """Print the result as one JSON object, or as lines."""
    head, counts = header(f"{artifact.name}, served", commit), result.counts
    speed = counts.tokens / result.seconds
    waits = {"first_token_s": percentiles(counts.first), "answer_s": percentiles(counts.whole)}
    if as_json:
        before, early, *_, late = map(asdict, result.samples)
        figures = {
            "requests": dict(counts.ends),
            "tokens_per_second": speed,
            **waits,
            "server": {"before": before, "early": early, "late": late},
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
    for name in ("memory", "descriptors", "threads"):
        sampled = [getattr(sample, name) for sample in result.samples]
        shown = ", ".join("unknown" if value is None else f"{value:,}" for value in sampled)
        console.print(f"{name}: {shown} (before, after each tenth of the time, at the end)")
    for problem in counts.problems[:SHOWN]:
        console.print(problem, markup=False)


if __name__ == "__main__":
    main()
