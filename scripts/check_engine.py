"""Does it change a text who else is served? Requests that come and go, each against itself alone.

\b
    python scripts/write_prompts.py prompts.jsonl
    python scripts/check_engine.py gemma4-tiny-xnnpack prompts.jsonl --batch-sizes 2,4,8

The artifact must have caches for the largest batch. Which requests there are, their order and who
is to be cancelled follows from the seed; who meets whom from the machine's time as well.
"""

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
from rich.console import Console
from rich.progress import track

from eagle_aot.common.command import eagle_command
from eagle_aot.common.prompts import Prompt, read_prompts
from eagle_aot.lab.bench.settings import check_range
from eagle_aot.lab.invariants import check_invariants, check_serial
from eagle_aot.lab.options import drafter_option, no_cuda_graph_option, numbers
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH, ChainLen
from eagle_aot.runtime_runner.adaptive.shapes import AUTO_TREE
from eagle_aot.runtime_runner.decode.shape import Shape
from eagle_aot.runtime_runner.engine import (
    Engine,
    Failed,
    Finished,
    Limits,
    Request,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.results.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams

Drafts = tuple[ChainLen, Shape | Literal["auto"] | None]
"""A request's chain length, and the tree that takes its place."""
CHAINS: list[Drafts] = [(chain_len, None) for chain_len in (0, 1, 2, 4, 7, 15, AUTO_LENGTH)]
TREES: list[Drafts] = [(4, Shape(4, 4, 16)), (6, Shape(6, 8, 32)), (7, Shape(7, 8, 63)),
                       (AUTO_LENGTH, AUTO_TREE)]  # fmt: skip
CANCELLED, SERIAL = 0.15, 0.01
"""Shares: of requests, and of steps behind which all is compared with serial decoding."""
FORKED, ROOTS = 0.5, 4
"""The share of requests that begin as one of the first few and its answer."""
IDLE = 0.3  # the chance of a step that nobody comes before
HURRY = 0.25  # the chance of a step that cancels what is to be cancelled
SHOWN = 100  # requests
ASKING, LIKELIEST = 0.2, 2
"""The share of requests that are told of so many of the likeliest at each place of their prompt."""


class Alone(NamedTuple):
    """What a request answers with nobody beside it: tokens, and what it is told of its prompt."""

    tokens: list[int]
    told: list[tuple[Any, ...]]


@dataclass(kw_only=True, slots=True)
class Case:
    """A request, what it answers alone, and how many tokens it has when it is cancelled, None where
    it never is."""

    number: int
    request: Request
    alone: Alone
    cancel_at: int | None
    output: list[int] = field(default_factory=list)
    told: list[tuple[Any, ...]] = field(default_factory=list)


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.option("--batch-sizes", default="2,4,8", show_default=True, callback=numbers,
              help="Texts side by side.")  # fmt: skip
@click.option("--requests", "count", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Of each batch size.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@drafter_option
@no_cuda_graph_option
def main(
    artifact: Path,
    prompts_jsonl: Path,
    batch_sizes: list[int],
    count: int,
    max_new_tokens: int,
    seed: int,
    drafter: str | None,
    no_cuda_graph: bool,
) -> None:
    """Compare texts beside others with the same texts alone, token for token.

    Exits with 1 when one differs, or a request fails.
    """
    prompts = read_prompts(None, None, prompts_jsonl)
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph, drafter=drafter)
    check_range("--batch-sizes", batch_sizes, runner.constants.max_batch_size)
    rng, console = random.Random(seed), Console(stderr=True)
    requests, texts = list[tuple[Request, Alone]](), list[list[int]]()
    shown = track(range(count), "alone", console=console, disable=not console.is_terminal)
    for _ in shown:
        request = made_up(runner, rng, prompts, max_new_tokens, texts)
        requests.append((request, alone(runner, request)))
        texts.append([*request.prompt, *requests[-1][1].tokens])
    click.echo(str(runner.warm_up(max(batch_sizes), AUTO_LENGTH)), err=True)
    if runner.drafter.grows_trees:
        click.echo(str(runner.warm_up(max(batch_sizes), tree=AUTO_TREE)), err=True)
    orders = [rng.sample(range(count), count) for _ in batch_sizes]
    cases = [[case_of(rng, i, *requests[i]) for i in order] for order in orders]
    wrong = 0
    for batch_size, shuffled in zip(batch_sizes, cases, strict=True):
        wrong += Soak(runner.engine, rng, batch_size).run(shuffled)
    click.echo(f"{wrong} of {count * len(batch_sizes)} texts differ")
    sys.exit(1 if wrong else 0)


def made_up(
    runner: Runner, rng: random.Random, prompts: list[Prompt], longest: int, texts: list[list[int]]
) -> Request:
    """Some prompt of the file, often cut, with random limits and drafts; often behind the beginning
    of one of `texts`."""
    constants = runner.constants
    ids = runner.encode(rng.choice(prompts))
    if texts and rng.random() < FORKED:
        before = rng.choice(texts[:ROOTS])
        ids = [*before[: rng.choice((len(before), rng.randint(1, len(before))))], *ids]
    length = rng.choice((len(ids), rng.randint(1, len(ids))))
    prompt = ids[: min(length, constants.max_seq_len - 1)]
    stops = rng.sample(range(constants.vocab_size), rng.choice((0, 0, 1, 20)))
    limits = Limits(
        room=min(rng.randint(1, longest), constants.max_seq_len - len(prompt)),
        stop_ids=frozenset((*constants.eos_ids, *stops)),
    )
    chain_len, tree = rng.choice(CHAINS + TREES if runner.drafter.grows_trees else CHAINS)
    return Request(
        prompt=tuple(prompt),
        limits=limits,
        chain_len=chain_len,
        tree=tree,
        reuse=rng.random() < 0.5,
        sampling=SamplingParams(prompt_logprobs=LIKELIEST if rng.random() < ASKING else None),
    )


def alone(runner: Runner, request: Request) -> Alone:
    """Decoded plainly by who asks for nothing of its prompt, which is told of by itself."""
    limits, most = request.limits, request.sampling.prompt_logprobs
    result = runner.generate(request.prompt, limits.room, speculate=False, stop_ids=limits.stop_ids)
    if most is None:
        return Alone(result.token_ids, [])
    told = runner.generate(request.prompt, 0, prompt_logprobs=most).prompt_logprobs
    return Alone(result.token_ids, bare(told or ()))


def bare(logprobs: Sequence[TokenLogprobs]) -> list[tuple[Any, ...]]:
    """Without the places in a text."""
    return [one[:3] for one in logprobs]


def case_of(rng: random.Random, number: int, request: Request, text: Alone) -> Case:
    """Some are cancelled, in front of their first token or anywhere behind it."""
    cancelled = rng.random() < CANCELLED
    cancel_at = rng.randrange(len(text.tokens)) if cancelled else None
    return Case(number=number, request=request, alone=text, cancel_at=cancel_at)


class Soak:
    """Requests that come at random, so many of them side by side."""

    def __init__(self, engine: Engine, rng: random.Random, batch_size: int) -> None:
        self._engine, self._rng, self._batch_size = engine, rng, batch_size
        caches = len(engine.sequences.order)
        # Where there are as many caches as texts, some wait for one in the engine itself.
        self._most = batch_size if batch_size < caches else 2 * batch_size
        self._served: dict[int, Case] = {}
        self._wrong = self._done = self._cancelled = self._kept = 0

    def run(self, cases: list[Case]) -> int:
        """How many differ; each is printed, and how far all have come."""
        started = time.perf_counter()
        coming = list(reversed(cases))
        while coming or self._served:
            while coming and len(self._served) < self._most and self._rng.random() > IDLE:
                self._add(coming.pop())
            self._step()
        click.echo(
            f"batch size {self._batch_size}: {self._done} requests in "
            f"{time.perf_counter() - started:.0f} s, {self._cancelled} of them cancelled, "
            f"{self._kept:,} tokens of prompts not run, {self._wrong} differ"
        )
        return self._wrong

    def _add(self, case: Case) -> None:
        number = self._engine.add(case.request)
        self._served[number] = case
        self._cancel_in_time(number, case)

    def _cancel_in_time(self, number: int, case: Case) -> None:
        """Not always at once: it waits, is in its prompt, or runs."""
        due = case.cancel_at is not None and len(case.output) >= case.cancel_at
        if due and self._rng.random() < HURRY:
            self._engine.cancel(number)

    def _step(self) -> None:
        for event in self._engine.step():
            case = self._served[event.request]
            if isinstance(event, Tokens):
                case.output += event.tokens
            elif isinstance(event, Scored):
                case.told += bare(event.logprobs)
            else:
                del self._served[event.request]
                self._end(case, event)
        for number, case in self._served.items():
            self._cancel_in_time(number, case)
        check_invariants(self._engine)
        if self._rng.random() < SERIAL:
            check_serial(self._engine)

    def _end(self, case: Case, event: Finished | Failed) -> None:
        self._done += 1
        self._kept += event.kept if isinstance(event, Finished) else 0
        if self._done % SHOWN == 0:
            click.echo(f"batch size {self._batch_size}: {self._done} done", err=True)
        if (problem := self._problem(case, event)) is not None:
            self._wrong += 1
            click.echo(f"batch size {self._batch_size}, request {case.number}: {problem}")

    def _problem(self, case: Case, event: Finished | Failed) -> str | None:
        if isinstance(event, Failed):
            return event.error
        expected, told = case.alone
        if event.reason == "cancelled":
            self._cancelled += 1
            expected, told = expected[: len(case.output)], told[: len(case.told)]
        if case.told != told:
            return "its prompt is told of otherwise"
        if case.output == expected:
            return None
        pairs = zip(case.output, expected, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if place is None:
            return f"{len(case.output)} tokens instead of {len(expected)}"
        return f"token {place} is {case.output[place]} instead of {expected[place]}"


if __name__ == "__main__":
    main()
