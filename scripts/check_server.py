"""A server under many clients: every text as it is alone, and what they waited.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 8
    eagle-serve gemma4-tiny-xnnpack &
    python scripts/write_prompts.py prompts.jsonl
    python scripts/check_server.py gemma4-tiny-xnnpack prompts.jsonl --clients 64 --minutes 10

Texts are made here first, one by one, and asked of the server again and again, whole and streamed,
some with log probabilities, by OpenAI's own client. With --chaos some clients vanish in the middle
of a stream, some read slowly, and some send half a request; with --kill-every, of a server with
--replicas on this machine one replica after the other dies.
"""

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import httpx
from rich.console import Console

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.lab.checks.server.asked import asked_of
from eagle_aot.lab.checks.server.client import PATIENCE, Client
from eagle_aot.lab.checks.server.replicas import Killer, replicas, resident_of
from eagle_aot.lab.checks.server.tally import Tally, percentiles
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import commit_option, json_option

RESIDENT = "process_resident_memory_bytes"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, of the process that answers requests and of each replica."""

    server: int
    replicas: Sequence[int] = ()

    def __str__(self) -> str:
        return " + ".join(f"{size / 1e6:,.0f}" for size in (self.server, *self.replicas))


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What came of `seconds` of it; `memory` is that before, after a tenth of the time, and at the
    end."""

    seconds: float
    tally: Tally
    memory: Sequence[Memory]
    killed: int | None = None


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.option("--url", default="http://127.0.0.1:8000", show_default=True)
@click.option("--clients", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=10.0,
              show_default=True)  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), default=120, show_default=True,
              help="Different requests.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=48, show_default=True)
@click.option("--chaos", is_flag=True, help="Clients that do not behave.")
@click.option("--kill-every", type=click.FloatRange(min=0, min_open=True), metavar="S",
              help="Seconds, from one replica's end by SIGKILL to the next one's.")  # fmt: skip
@commit_option
@json_option
def main(
    artifact: Path,
    prompts_jsonl: Path,
    url: str,
    clients: int,
    minutes: float,
    count: int,
    max_new_tokens: int,
    chaos: bool,
    kill_every: float | None,
    commit: str | None,
    as_json: bool,
) -> None:
    """Ask a server of ARTIFACT; exits with 1 where an answer differs, a request is lost or a
    replica is not replaced."""
    if kill_every is not None and not replicas():
        raise SettingError("--kill-every: no replicas on this machine: eagle-serve --replicas 2")
    killer = Killer(kill_every) if kill_every is not None else None
    requests = asked_of(artifact, prompts_jsonl, count, max_new_tokens)
    tally = Tally()
    asking = [Client(url, requests, tally, chaos, seed) for seed in range(clients)]
    found = watched(url, asking, tally, killer, 60 * minutes)
    show(artifact, found, commit, as_json)
    sys.exit(1 if tally.problems else 0)


def watched(
    url: str, clients: Sequence[Client], tally: Tally, killer: Killer | None, seconds: float
) -> Found:
    """All of them at once, for so long."""
    memory = [memory_of(url)]
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(len(clients) + 1) as pool:
        running = [pool.submit(client.ask_until, end) for client in clients]
        if killer is not None:
            running.append(pool.submit(killer.kill_until, end))
        time.sleep(seconds / 10)  # caches of all kinds are warm
        memory.append(memory_of(url))
        for one in running:
            one.result()
    if killer is not None and not killer.all_replaced():
        tally.note("failed", "replicas that were killed were not replaced")
    memory.append(memory_of(url))
    killed = None if killer is None else killer.killed
    return Found(seconds=seconds, tally=tally, memory=memory, killed=killed)


def memory_of(url: str) -> Memory:
    """The server's by its own metrics, the replicas' by what the system says."""
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE).text.splitlines()
    (line,) = (line for line in lines if line.startswith(f"{RESIDENT} "))
    return Memory(int(float(line.split()[1])), [resident_of(one) for one in replicas()])


def show(artifact: Path, found: Found, commit: str | None, as_json: bool) -> None:
    """What came of it."""
    head, tally = header(f"{artifact.name}, served", commit), found.tally
    speed = tally.tokens / found.seconds
    first, whole = percentiles(tally.first), percentiles(tally.whole)
    if as_json:
        memory = zip(("before", "early", "late"), map(asdict, found.memory), strict=True)
        figures = {
            "requests": dict(tally.ends),
            "tokens_per_second": speed,
            "first_token_s": first,
            "answer_s": whole,
            "memory": dict(memory),
            "killed": found.killed,
            "problems": tally.problems[:3],
        }
        click.echo(json.dumps({**asdict(head), **figures}))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(*title_lines(head), "", sep="\n")
    console.print(", ".join(f"{number:,} {how}" for how, number in tally.ends.most_common()))
    if found.killed is not None:
        console.print(f"{found.killed} replicas killed, and replaced")
    console.print(f"{speed:,.0f} tokens/s")
    for name, values in (("first token", first), ("answer", whole)):
        shown = ", ".join(f"{key} {value:.2f}" for key, value in values.items())
        console.print(f"{name}, seconds: {shown}")
    console.print("memory, MB: " + ", ".join(map(str, found.memory))
                  + " (before, after a tenth of the time, at the end)")  # fmt: skip
    for problem in tally.problems[:3]:
        console.print(problem, markup=False)


if __name__ == "__main__":
    main()
