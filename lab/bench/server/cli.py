"""`eagle-bench --part server`: speed of an artifact over HTTP and of its engine alone.

First the artifact answers in a process of its own, one request after the other and several in
parallel. Then `eagle-serve` is started on it, without reuse of prompts, and OpenAI's client sends
the same requests from processes of its own. Every text must be the one that it was before. An
artifact of random weights, which has no tokenizer, is given one whose words are its tokens.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import click
from rich.table import Table

from eagle_aot.artifact import Manifest, tokenizer_files
from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import read_prompts
from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.server.measure import (
    EngineTimes,
    ServerTimes,
    engine_alone,
    measure_server,
)
from eagle_aot.lab.bench.server.words import random_prompts, with_words, words_of
from eagle_aot.lab.bench.spec import UNKNOWN, BenchSpec, table_of
from eagle_aot.lab.serving import serving

MADE_PROMPTS = 64
WAITS = (
    ("first_token", "first token,\nseconds:", 1.0, 3, ("median", "95 %", "99 %")),
    ("per_token", "ms a token:", 1e3, 2, ("median", "99 %")),
    ("between", "ms between\nevents:", 1e3, 2, ("median", "99 %")),
)
"""Columns of waiting times: attribute, heading, unit, digits, and percentiles."""


class ServerSpec(BenchSpec, kw_only=True, frozen=True):
    """The load, and the server."""

    prompts_jsonl: Annotated[
        Path | None, Option("Prompts; default, without a tokenizer: random words.", metavar="FILE")
    ] = None
    clients: Annotated[
        tuple[int, ...], Option("Clients in parallel.", metavar="N,...", commas=True)
    ] = (1, 2, 4, 8, 16)
    texts: Annotated[int, Option("Requests of each client, one after the other.", least=1)] = 4
    max_new_tokens: Annotated[int, Option("Output tokens of a request.", least=2)] = 128
    prompt_tokens: Annotated[int, Option("Tokens of each prompt of random words.", least=1)] = 128
    temperature: Annotated[float, Option("Sampling temperature; 0 is greedy.", least=0)] = 0.0
    no_speculation: Annotated[bool, Option("Decode without drafts.")] = False
    replicas: Annotated[
        int | None,
        Option("Replicas of the server on Ray; default: one server, without Ray.", least=1),
    ] = None
    url: Annotated[str | None, Option("URL of a running server; default: start one.")] = None
    no_alone: Annotated[bool, Option("Do not measure the engine without a server.")] = False

    def load_of(self) -> "Load":
        """Return the requests. Raises SettingError where there are no prompts."""
        if self.prompts_jsonl is not None:
            lines = read_prompts(None, None, self.prompts_jsonl)
            prompts = [prompt for prompt in lines if isinstance(prompt, str)]
        elif tokenizer_files(self.artifact):
            raise SettingError(f"{self.artifact}: has a tokenizer: name a file of prompts")
        else:
            words = words_of(Manifest.read(self.artifact))
            prompts = random_prompts(words, MADE_PROMPTS, self.prompt_tokens)
        return Load(
            prompts=prompts,
            texts=self.texts,
            parameters={
                "max_new_tokens": self.max_new_tokens,
                "temperature": self.temperature,
                "speculate": not self.no_speculation,
            },
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Each client sends `texts` requests, one after the other, with these `parameters`."""

    prompts: Sequence[str]
    texts: int
    parameters: dict[str, Any]

    def prompts_of(self, clients: int) -> list[str]:
        """Return the prompts of all clients' requests; a request's index is its seed."""
        return [self.prompts[i % len(self.prompts)] for i in range(clients * self.texts)]

    def by_client(self, clients: int) -> list[list[dict[str, Any]]]:
        """Return the same by client: the first request of each, then the second, and so on."""
        requests = [{"number": i, "prompt": p} for i, p in enumerate(self.prompts_of(clients))]
        return [requests[client::clients] for client in range(clients)]


@dataclass(slots=True)
class KnownTexts:
    """The text of each request, by its number, as it was first answered."""

    texts: dict[int, str] = field(default_factory=dict)

    def count_different(self, texts: Mapping[int, str]) -> int:
        """Return how many texts are not what they were before; remember new ones."""
        return sum(self.texts.setdefault(number, text) != text for number, text in texts.items())

    @property
    def sha256(self) -> str:
        """The hash of all texts, as JSON of pairs in the order of their numbers."""
        return hashlib.sha256(json.dumps(sorted(self.texts.items())).encode()).hexdigest()


@spec_command(ServerSpec)
def main(spec: ServerSpec) -> None:
    """Measure a server of ARTIFACT. Exits with 1 where a text is not what it was before."""
    load, known_texts, alone = spec.load_of(), KnownTexts(), dict[int, EngineTimes]()
    caches = Manifest.read(spec.artifact).max_batch_size
    with ExitStack() as stack:
        readable = stack.enter_context(with_words(spec.artifact))
        if not spec.no_alone:
            sizes = sorted({1, *(min(count, caches) for count in spec.clients)})
            alone = engine_alone(readable, sizes, load, known_texts)
        url = spec.url
        if url is None:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            options = [
                "--served-model-name",
                spec.name,
                "--no-reuse",
                "--sampling-defaults",
                "openai",
            ]
            options += ["--replicas", str(spec.replicas)] if spec.replicas else []
            _, url = stack.enter_context(serving(readable, *options, log=log))
        lines = [
            measure_server(url, count, alone.get(min(count, caches)), load, known_texts)
            for count in spec.clients
        ]
    different = sum(line.different for line in lines)
    results = {
        "alone": {size: asdict(times) for size, times in alone.items()},
        "lines": [line.to_json() for line in lines],
        "texts": len(known_texts.texts),
        "texts_sha256": known_texts.sha256,
    }
    counts = f"{len(known_texts.texts)} texts, {different} not always the same"
    spec.show(f"{spec.name}, served", results, *tables(lines, alone.get(1)), counts)
    if different:
        raise click.ClickException(f"{different} texts are not what they were")


def tables(lines: Sequence[ServerTimes], single: EngineTimes | None) -> Iterator[Table | str]:
    """Yield what clients waited for, and where the server's time went.

    `single` is the engine alone with one request after the other.
    """
    if single is not None and single.first_token is not None:
        first = f"first token after {single.first_token['median']:.3f} s (median)"
        speed = f"{single.tokens_per_second:,.0f} tokens/s"
        yield f"one request after the other, alone: {speed}, {first}"
    yield client_table(lines, single)
    if any(line.served.rounds for line in lines):
        yield host_table(lines)


def client_table(lines: Sequence[ServerTimes], single: EngineTimes | None) -> Table:
    """Return speeds and waiting times."""
    headings = (f"{name} {share}" for _, name, _, _, shares in WAITS for share in shares)
    table = table_of("clients", "tokens/s", "x one request\nalone", "x as many\nalone", *headings)
    for line in lines:
        speed = line.served.tokens_per_second
        ratios = (
            UNKNOWN if other is None else f"{speed / other.tokens_per_second:.2f}"
            for other in (single, line.alone)
        )
        waits = (
            number(getattr(line, attribute).get(share), unit, digits)
            for attribute, _, unit, digits, shares in WAITS
            for share in shares
        )
        table.add_row(str(line.clients), f"{speed:,.0f}", *ratios, *waits)
    return table


def host_table(lines: Sequence[ServerTimes]) -> Table:
    """Return where the engine's thread spent its time, with a server and alone."""
    table = table_of("clients", "round ms", "alone", "host ms", "alone", "host\nshare", "alone")
    for line in lines:
        times = line.served, line.alone or EngineTimes(seconds=1.0, tokens=0)
        table.add_row(
            str(line.clients),
            *(number(e.round_ms, 1, 3) for e in times),
            *(number(e.host_ms, 1, 3) for e in times),
            *(UNKNOWN if e.host_share is None else f"{e.host_share:.1%}" for e in times),
        )
    return table


def number(value: float | None, unit: float, digits: int) -> str:
    """Format a number in a unit."""
    return UNKNOWN if value is None else f"{unit * value:,.{digits}f}"
