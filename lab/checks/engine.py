"""Does a text depend on who else is served? Requests come and go, each compared with itself alone.

Requests, their order and cancellations follow from the seed; which requests run together also
depends on the machine's speed.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
from rich.console import Console
from rich.progress import track

from eagle_aot.common.errors import PromptError
from eagle_aot.common.prompts import read_prompts
from eagle_aot.lab.invariants import check_invariants, check_serial
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.decode.shape import AUTO, ChainLen, Shape
from eagle_aot.runtime_runner.engine import (
    Engine,
    Failed,
    Finished,
    Limits,
    Request,
    Scored,
    Tokens,
)
from eagle_aot.runtime_runner.sampling.logprobs import TokenLogprobs
from eagle_aot.runtime_runner.sampling.parameters import SamplingParams

DraftShape = tuple[ChainLen, Shape | Literal["auto"] | None]
"""A request's chain length, and the tree that replaces it."""
CHAINS: list[DraftShape] = [(chain_len, None) for chain_len in (0, 1, 2, 4, 7, 15, AUTO)]
TREES: list[DraftShape] = [(4, Shape(4, 4, 16)), (6, Shape(6, 8, 32)), (7, Shape(7, 8, 63)),
                           (AUTO, AUTO)]  # fmt: skip
CANCELLED = 0.15  # the share of requests that are cancelled
CANCEL_NOW = 0.25  # the chance that a step cancels a request that is due
SERIAL = 0.01  # the share of steps after which all caches are compared with serial decoding
NO_ARRIVAL = 0.3  # the chance that no request arrives before a step
CONTINUED, CONTINUED_TEXTS = 0.5, 4
"""The share of requests that begin with one of the first few prompts and its answer."""
SCORED, LOGPROBS = 0.2, 2
"""The share of requests that want log probabilities of their prompt, and of how many tokens."""
REPORTED_EVERY = 100  # requests

PromptScores = list[tuple[Any, ...]]


class LoneAnswer(NamedTuple):
    """What a request answers when it runs alone: tokens, and the scores of its prompt."""

    tokens: list[int]
    prompt_scores: PromptScores


@dataclass(kw_only=True, slots=True)
class Case:
    """A request, its answer when it runs alone, and what it has answered so far.

    `cancel_at` is the number of tokens after which it is cancelled, None for never.
    """

    number: int
    request: Request
    expected: LoneAnswer
    cancel_at: int | None
    output: list[int] = field(default_factory=list)
    prompt_scores: PromptScores = field(default_factory=list)


def read_ids(runner: Runner, path: Path) -> list[list[int]]:
    """Return the token ids of a file's prompts. Raises PromptError, which names the prompt."""
    ids = []
    for number, prompt in enumerate(read_prompts(None, None, path), start=1):
        try:
            ids.append(runner.encode(prompt))
        except PromptError as error:
            raise PromptError(f"{path}: prompt {number}: {error}") from error
    return ids


def check_engine(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    batch_sizes: Sequence[int],
    count: int,
    max_new_tokens: int,
    seed: int,
) -> int:
    """Serve `count` requests at each batch size; return how many texts differ from those alone."""
    rng, console = random.Random(seed), Console(stderr=True)
    requests, texts = list[tuple[Request, LoneAnswer]](), list[list[int]]()
    numbers = track(range(count), "alone", console=console, disable=not console.is_terminal)
    for _ in numbers:
        request = random_request(runner, rng, prompts, max_new_tokens, texts)
        answer = answer_alone(runner, request)
        requests.append((request, answer))
        texts.append([*request.prompt, *answer.tokens])
    click.echo(str(runner.warm_up(max(batch_sizes), AUTO)), err=True)
    if runner.grows_trees:
        click.echo(str(runner.warm_up(max(batch_sizes), tree=AUTO)), err=True)
    orders = [rng.sample(range(count), count) for _ in batch_sizes]
    cases = [[random_case(rng, i, *requests[i]) for i in order] for order in orders]
    return sum(
        Soak(runner.engine, rng, batch_size).run(shuffled)
        for batch_size, shuffled in zip(batch_sizes, cases, strict=True)
    )


def random_request(
    runner: Runner,
    rng: random.Random,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    texts: Sequence[Sequence[int]],
) -> Request:
    """Return a request for one of `prompts`, often cut, with random limits and drafts.

    It often begins with one of `texts`, or a part of it.
    """
    constants = runner.constants
    ids = list(rng.choice(prompts))
    if texts and rng.random() < CONTINUED:
        prefix = rng.choice(texts[:CONTINUED_TEXTS])
        ids = [*prefix[: rng.choice((len(prefix), rng.randint(1, len(prefix))))], *ids]
    length = rng.choice((len(ids), rng.randint(1, len(ids))))
    prompt = ids[: min(length, constants.max_seq_len - 1)]
    stops = rng.sample(range(constants.vocab_size), rng.choice((0, 0, 1, 20)))
    limits = Limits(
        max_new_tokens=min(rng.randint(1, max_new_tokens), constants.max_seq_len - len(prompt)),
        stop_ids=frozenset((*constants.eos_ids, *stops)),
    )
    chain_len, tree = rng.choice(CHAINS + TREES if runner.grows_trees else CHAINS)
    return Request(
        prompt=tuple(prompt),
        limits=limits,
        chain_len=chain_len,
        tree=tree,
        reuse=rng.random() < 0.5,
        sampling=SamplingParams(prompt_logprobs=LOGPROBS if rng.random() < SCORED else None),
    )


def answer_alone(runner: Runner, request: Request) -> LoneAnswer:
    """Decode a request plainly, and score its prompt in a request of its own."""
    limits, logprobs = request.limits, request.sampling.prompt_logprobs
    result = runner.generate(
        request.prompt, limits.max_new_tokens, speculate=False, stop_ids=limits.stop_ids
    )
    if logprobs is None:
        return LoneAnswer(result.token_ids, [])
    scores = runner.generate(request.prompt, 0, prompt_logprobs=logprobs).prompt_logprobs
    return LoneAnswer(result.token_ids, without_offsets(scores or ()))


def without_offsets(logprobs: Sequence[TokenLogprobs]) -> PromptScores:
    """Drop where each token lies in the text, which depends on the text around it."""
    return [token[:3] for token in logprobs]


def random_case(rng: random.Random, number: int, request: Request, expected: LoneAnswer) -> Case:
    """Return a case; some are cancelled, before their first token or anywhere after it."""
    cancelled = rng.random() < CANCELLED
    cancel_at = rng.randrange(len(expected.tokens)) if cancelled else None
    return Case(number=number, request=request, expected=expected, cancel_at=cancel_at)


class Soak:
    """Requests that arrive at random, `batch_size` of them in parallel."""

    def __init__(self, engine: Engine, rng: random.Random, batch_size: int) -> None:
        self._engine, self._rng, self._batch_size = engine, rng, batch_size
        caches = len(engine.sequence_pool.order)
        # Where there are as many caches as texts, some wait for a cache in the engine itself.
        self._most = batch_size if batch_size < caches else 2 * batch_size
        self._cases: dict[int, Case] = {}
        self._wrong = self._done = self._cancelled = self._cached_tokens = 0

    def run(self, cases: list[Case]) -> int:
        """Serve all cases and print each that differs; return how many do."""
        started = time.perf_counter()
        waiting = list(reversed(cases))
        while waiting or self._cases:
            while waiting and len(self._cases) < self._most and self._rng.random() > NO_ARRIVAL:
                self._add(waiting.pop())
            self._step()
        click.echo(
            f"batch size {self._batch_size}: {self._done} requests in "
            f"{time.perf_counter() - started:.0f} s, {self._cancelled} of them cancelled, "
            f"{self._cached_tokens:,} tokens of prompts not run, {self._wrong} differ"
        )
        return self._wrong

    def _add(self, case: Case) -> None:
        number = self._engine.add(case.request)
        self._cases[number] = case
        self._cancel_if_due(number, case)

    def _cancel_if_due(self, number: int, case: Case) -> None:
        """Cancel with some chance, so that it waits, is in its prompt, or runs."""
        due = case.cancel_at is not None and len(case.output) >= case.cancel_at
        if due and self._rng.random() < CANCEL_NOW:
            self._engine.cancel(number)

    def _step(self) -> None:
        for event in self._engine.step():
            case = self._cases[event.request]
            if isinstance(event, Tokens):
                case.output += event.tokens
            elif isinstance(event, Scored):
                case.prompt_scores += without_offsets(event.logprobs)
            else:
                del self._cases[event.request]
                self._end(case, event)
        for number, case in self._cases.items():
            self._cancel_if_due(number, case)
        check_invariants(self._engine)
        if self._rng.random() < SERIAL:
            check_serial(self._engine)

    def _end(self, case: Case, event: Finished | Failed) -> None:
        self._done += 1
        self._cached_tokens += event.reused if isinstance(event, Finished) else 0
        if self._done % REPORTED_EVERY == 0:
            click.echo(f"batch size {self._batch_size}: {self._done} done", err=True)
        if (problem := self._problem(case, event)) is not None:
            self._wrong += 1
            click.echo(f"batch size {self._batch_size}, request {case.number}: {problem}")

    def _problem(self, case: Case, event: Finished | Failed) -> str | None:
        if isinstance(event, Failed):
            return event.error
        expected, scores = case.expected
        if event.reason == "cancelled":
            self._cancelled += 1
            expected, scores = expected[: len(case.output)], scores[: len(case.prompt_scores)]
        if case.prompt_scores != scores:
            return "its prompt has other log probabilities"
        if case.output == expected:
            return None
        pairs = zip(case.output, expected, strict=False)
        index = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if index is None:
            return f"{len(case.output)} tokens instead of {len(expected)}"
        return f"token {index} is {case.output[index]} instead of {expected[index]}"
