"""An artifact by itself, and a server of it, under the same load."""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from eagle_aot.common.errors import EagleError
from eagle_aot.lab.bench.server.figures import EngineTime, Line, clock, spread, times
from eagle_aot.lab.bench.server.load import Known, Load
from eagle_aot.lab.worker import Worker

WARM_TOKENS = 16
PATIENCE = 120.0  # seconds, of what is asked of a server beside texts
ENGINE = "eagle_engine_seconds_total"
CPU = "eagle_answering_cpu_seconds_total"
PARTS = "rounds", "prompts", "host"


def by_itself(
    artifact: Path, batch_sizes: Sequence[int], load: Load, known: Known
) -> dict[int, EngineTime]:
    """So many texts side by side of each, in a process that ends behind it. Raises EagleError where
    a text is not what it was."""
    command = [sys.executable, "-m", "eagle_aot.lab.bench.server.in_engine", str(artifact)]
    with closing(Worker(f"{artifact.name}, alone", command)) as worker:
        return {size: alone(worker, size, load, known) for size in batch_sizes}


def alone(worker: Worker, batch_size: int, load: Load, known: Known) -> EngineTime:
    """As many texts as as many clients ask for."""
    prompts, parameters = load.of(batch_size), load.parameters
    short = parameters | {"max_new_tokens": WARM_TOKENS}
    size = {"batch_size": batch_size}
    worker.ask(size | {"prompts": prompts[:batch_size], "parameters": short})
    found = worker.ask(size | {"prompts": prompts, "parameters": parameters})
    if different := known.different(dict(enumerate(found["texts"]))):
        raise EagleError(f"{different} texts of {batch_size} side by side differ from those before")
    waited = found["rounds_seconds"], found["prompts_seconds"]
    return EngineTime(
        seconds=found["seconds"],
        tokens=found["tokens"],
        rounds=found["rounds"],
        rounds_seconds=waited[0],
        prompts_seconds=waited[1],
        host_seconds=found["seconds"] - sum(waited),
        first_token=spread(found["first"]),
    )


def served(url: str, clients: int, alone: EngineTime | None, load: Load, known: Known) -> Line:
    """So many clients at once; what they ask first, and briefly, is not measured."""
    with askers(url, clients) as workers:
        ask(workers, clients, load, {"max_tokens": WARM_TOKENS}, texts=1)
        before = metrics(url)
        found = ask(workers, clients, load, {})
        after = metrics(url)
    spent = {name: value - before.get(name, 0.0) for name, value in after.items()}
    answers = [answer for one in found for answer in one["answers"]]
    tokens = sum(answer["tokens"] for answer in answers)
    return Line(
        clients=clients,
        served=engine_time(spent, clock(answers), tokens),
        alone=alone,
        text_rounds=int(spent.get("eagle_rounds_total", 0)),
        cpu_seconds=spent.get(CPU),
        clients_cpu=sum(one["cpu_seconds"] for one in found) / clock(answers) / len(found),
        different=known.different({answer["number"]: answer["text"] for answer in answers}),
        **times(answers),
    )


def engine_time(spent: dict[str, float], seconds: float, tokens: int) -> EngineTime:
    """Of an engine that its server tells of; one behind Ray's does not."""
    if ENGINE + '{in="rounds"}' not in spent:
        return EngineTime(seconds=seconds, tokens=tokens)
    rounds, prompts, host = (spent[f'{ENGINE}{{in="{name}"}}'] for name in PARTS)
    return EngineTime(
        seconds=seconds,
        tokens=tokens,
        rounds=int(spent["eagle_engine_rounds_total"]),
        rounds_seconds=rounds,
        prompts_seconds=prompts,
        host_seconds=host,
    )


@contextmanager
def askers(url: str, clients: int) -> Iterator[list[Worker]]:
    """Processes for so many clients, one for every two cores at most."""
    count = min(clients, max(1, (os.cpu_count() or 1) // 2))
    command = [sys.executable, "-m", "eagle_aot.lab.bench.server.asker", url]
    with ThreadPoolExecutor(count) as pool:
        workers = list(pool.map(lambda i: Worker(f"client {i}", command), range(count)))
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


def ask(
    workers: Sequence[Worker],
    clients: int,
    load: Load,
    change: dict[str, Any],
    texts: int | None = None,
) -> list[dict[str, Any]]:
    """All clients at once, each for its first `texts`, or all; what each process says."""
    of_each = [asked[:texts] for asked in load.of_each(clients)]
    parameters = load.parameters
    words = {"temperature": parameters["temperature"], "max_tokens": parameters["max_new_tokens"]}
    words |= {"extra_body": {"speculate": parameters["speculate"]}, **change}
    asked = [{"clients": of_each[i :: len(workers)], "words": words} for i in range(len(workers))]
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(Worker.ask, workers, asked))


def metrics(url: str) -> dict[str, float]:
    """Of /metrics, by name and labels."""
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE).text.splitlines()
    told = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in told}
