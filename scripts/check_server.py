"""A server under many clients: every text as it is alone, and what they waited.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 8
    eagle-serve gemma4-tiny-xnnpack &
    python scripts/write_prompts.py prompts.jsonl
    python scripts/check_server.py gemma4-tiny-xnnpack prompts.jsonl --clients 64 --minutes 10

Texts are made here first, one by one, and asked of the server again and again, whole and streamed,
by OpenAI's own client. With --chaos some clients vanish in the middle of a stream, some read
slowly, and some send half a request.
"""

import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit

import click
import httpx
from openai import OpenAI, OpenAIError
from rich.console import Console
from rich.progress import track

from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import read_prompts
from eagle_aot.runtime_runner import load_artifact
from eagle_aot.runtime_runner.parameters import Parameters
from shared.header import header, title_lines

HEATS = 0.0, 0.7, 1.0
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
PATIENCE = 120.0  # seconds
RESIDENT = "process_resident_memory_bytes"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and the text that it has alone."""

    prompt: str
    parameters: Parameters
    text: str


@dataclass(slots=True)
class Tally:
    """Over all clients: how requests ended, seconds until the first token and until the end, and
    of those that failed or differ the first few."""

    ends: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    tokens: int = 0
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


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
@click.option("--commit", help="Default: what git says of the package.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    artifact: Path,
    prompts_jsonl: Path,
    url: str,
    clients: int,
    minutes: float,
    count: int,
    max_new_tokens: int,
    chaos: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Ask a server of ARTIFACT; exits with 1 where a text differs or a request is lost."""
    requests = asked_of(artifact, prompts_jsonl, count, max_new_tokens)
    tally, memory = Tally(), [resident(url)]
    end = time.monotonic() + 60 * minutes
    threads = [
        threading.Thread(target=Client(url, requests, tally, chaos, seed).ask_until, args=(end,))
        for seed in range(clients)
    ]
    for thread in threads:
        thread.start()
    time.sleep(6 * minutes)  # a tenth: caches of all kinds are warm
    memory.append(resident(url))
    for thread in threads:
        thread.join()
    memory.append(resident(url))
    show(artifact, tally, memory, 60 * minutes, commit, as_json)
    sys.exit(1 if tally.problems else 0)


def asked_of(artifact: Path, path: Path, count: int, longest: int) -> list[Asked]:
    """The first so many prompts that are text, each with a seed of its own."""
    runner = load_artifact(artifact)
    texts = [prompt for prompt in read_prompts(None, None, path) if isinstance(prompt, str)]
    asked = []
    shown = track(texts[:count], "alone", console=Console(stderr=True), transient=True)
    for seed, prompt in enumerate(shown):
        heat = HEATS[seed % len(HEATS)]
        parameters = Parameters(temperature=heat, seed=seed, max_new_tokens=longest)
        asked.append(Asked(prompt, parameters, runner.answer(prompt, parameters).text))
    return asked


def resident(url: str) -> int:
    """Bytes of the server's memory, by its own metrics."""
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE).text.splitlines()
    (line,) = (line for line in lines if line.startswith(f"{RESIDENT} "))
    return int(float(line.split()[1]))


class Client:
    """One of many, which asks one request after the other."""

    def __init__(
        self, url: str, requests: Sequence[Asked], tally: Tally, chaos: bool, seed: int
    ) -> None:
        self._url, self._requests, self._tally, self._chaos = url, requests, tally, chaos
        self._rng = random.Random(seed)
        self._openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        (self._model,) = (model.id for model in self._openai.models.list().data)

    def ask_until(self, end: float) -> None:
        """Until the clock says so."""
        while time.monotonic() < end:
            one = self._rng.choice(self._requests)
            try:
                self._ask(one)
            except OpenAIError as error:
                self._note("failed", f"{type(error).__name__}: {error}")

    def _ask(self, one: Asked) -> None:
        if self._chaos and self._rng.random() < 0.05:
            self._send_half()
        elif self._rng.random() < 0.5:
            self._stream(one)
        else:
            self._whole(one)

    def _whole(self, one: Asked) -> None:
        started = time.monotonic()
        answer = self._openai.chat.completions.create(**self._words(one))
        text, usage = answer.choices[0].message.content, answer.usage
        self._judge(one, text or "", usage.completion_tokens if usage else 0, None, started)

    def _stream(self, one: Asked) -> None:
        started, first, text = time.monotonic(), None, ""
        vanishes = self._chaos and self._rng.random() < 0.1
        slow = self._chaos and self._rng.random() < 0.1
        tokens = 0
        with self._openai.chat.completions.create(
            **self._words(one), stream=True, stream_options={"include_usage": True}
        ) as chunks:
            for chunk in chunks:
                first = first or time.monotonic() - started
                tokens = chunk.usage.completion_tokens if chunk.usage else 0
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                if vanishes and len(text) > 20:
                    return self._note("vanished")
                time.sleep(0.05 if slow else 0)
        self._judge(one, text, tokens, first, started)

    def _words(self, one: Asked) -> dict[str, object]:
        """Of a request."""
        asked = one.parameters
        message = {"role": "user", "content": one.prompt}
        words = {"temperature": asked.temperature, "max_tokens": asked.max_new_tokens}
        return {"model": self._model, "messages": [message], "seed": asked.seed, **words}

    def _send_half(self) -> None:
        address = urlsplit(self._url)
        with socket.create_connection((address.hostname, address.port), PATIENCE) as line:
            line.sendall(HALF)
        self._note("half")

    def _judge(
        self, one: Asked, text: str, tokens: int, first: float | None, started: float
    ) -> None:
        with self._tally.lock:
            self._tally.whole.append(time.monotonic() - started)
            self._tally.tokens += tokens
            if first is not None:
                self._tally.first.append(first)
        if text == one.text:
            self._note("as alone")
        else:
            self._note("differs", f"{one.prompt!r}, {one.parameters}: {text!r}, not {one.text!r}")

    def _note(self, how: str, problem: str = "") -> None:
        with self._tally.lock:
            self._tally.ends[how] += 1
            if problem:
                self._tally.problems.append(problem)


def show(
    artifact: Path,
    tally: Tally,
    memory: Sequence[int],
    seconds: float,
    commit: str | None,
    as_json: bool,
) -> None:
    """What came of it."""
    head = header(f"{artifact.name}, served", commit)
    speed, first, whole = tally.tokens / seconds, percentiles(tally.first), percentiles(tally.whole)
    if as_json:
        figures = {
            "requests": dict(tally.ends),
            "tokens_per_second": speed,
            "first_token_s": first,
            "answer_s": whole,
            "memory": {"before": memory[0], "early": memory[1], "late": memory[2]},
            "problems": tally.problems[:3],
        }
        click.echo(json.dumps({**asdict(head), **figures}))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(*title_lines(head), "", sep="\n")
    console.print(", ".join(f"{number:,} {how}" for how, number in tally.ends.most_common()))
    console.print(f"{speed:,.0f} tokens/s")
    for name, values in (("first token", first), ("answer", whole)):
        shown = ", ".join(f"{key} {value:.2f}" for key, value in values.items())
        console.print(f"{name}, seconds: {shown}")
    console.print("memory, MB: " + ", ".join(f"{size / 1e6:,.0f}" for size in memory)
                  + " (before, after a tenth of the time, at the end)")  # fmt: skip
    for problem in tally.problems[:3]:
        console.print(problem, markup=False)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The median, and what 5 % and 1 % exceed."""
    if len(values) < 2:
        return {}
    cuts = quantiles(values, n=100)
    return {"median": cuts[49], "95 %": cuts[94], "99 %": cuts[98]}


if __name__ == "__main__":
    main()
