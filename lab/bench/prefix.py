"""`eagle-bench --part prefix`: time to the first token of requests that begin with the same prefix.

All requests arrive at once. Their prompts are random tokens, the same ones each time. Runs with
and without reuse of cached rows alternate; the median run of each is shown.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import click
import torch

from eagle_aot.common.spec import Option, spec_command
from eagle_aot.lab.bench.spec import BenchSpec, check_range, table_of
from eagle_aot.runtime_runner import Runner
from eagle_aot.runtime_runner.engine import Finished, Limits, Request, Tokens


class PrefixSpec(BenchSpec, kw_only=True, frozen=True):
    """The requests."""

    requests: Annotated[int, Option("Requests in parallel.", least=1)] = 8
    prefix: Annotated[int, Option("Tokens that all prompts begin with.", least=1)] = 400
    suffix: Annotated[int, Option("Different tokens of each prompt after it.", least=1)] = 40
    max_new_tokens: Annotated[int, Option("Output tokens of each request.", least=1)] = 32
    chain_len: Annotated[int, Option("Drafts per round.", least=0)] = 4
    repeats: Annotated[int, Option("Runs with reuse, and as many without.", least=1)] = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixTimes:
    """Seconds until the first tokens, mean and longest, and until the end; the tokens of prompts,
    those that were `cached`, and each request's output."""

    reuse: bool
    first_mean: float
    first_longest: float
    seconds: float
    cached_tokens: int
    prompt_tokens: int
    tokens: list[list[int]]


@spec_command(PrefixSpec)
def main(spec: PrefixSpec) -> None:
    """Time requests to ARTIFACT with a common prefix. Exits with 1 where reuse changes a token."""
    runner = spec.load()
    longest = runner.constants.max_seq_len - spec.max_new_tokens
    check_range("--prefix and --suffix", [spec.prefix + spec.suffix], longest)
    runner.warm_up(chain_len=spec.chain_len)
    prompts = random_prompts(spec.requests, spec.prefix, spec.suffix, runner.constants.vocab_size)
    runs = [
        measure(runner, prompts, spec, reuse=reuse)
        for _ in range(spec.repeats)
        for reuse in (False, True)
    ]
    lines = [median_run([run for run in runs if run.reuse == reuse]) for reuse in (False, True)]
    table = table_of(
        "reuse", "first token, mean: s", "longest", "all: s", "prompt tokens", "cached"
    )
    for line in lines:
        times = (f"{s:.3f}" for s in (line.first_mean, line.first_longest, line.seconds))
        counts = f"{line.prompt_tokens:,}", f"{line.cached_tokens:,}"
        table.add_row("yes" if line.reuse else "no", *times, *counts)
    subject = f"{spec.requests} requests to {spec.name}, a prefix of {spec.prefix} tokens"
    spec.show(subject, {"lines": [asdict(line) for line in lines]}, table)
    if any(run.tokens != runs[0].tokens for run in runs):
        raise click.ClickException("tokens differ")


def random_prompts(count: int, prefix: int, suffix: int, vocab_size: int) -> list[list[int]]:
    """Return prompts of random tokens whose first `prefix` tokens are the same."""
    rng = torch.Generator().manual_seed(1)
    shared = torch.randint(vocab_size, (prefix,), generator=rng).tolist()
    rest = torch.randint(vocab_size, (count, suffix), generator=rng).tolist()
    return [shared + tokens for tokens in rest]


def measure(
    runner: Runner, prompts: Sequence[Sequence[int]], spec: PrefixSpec, *, reuse: bool
) -> PrefixTimes:
    """Serve all prompts, starting with empty caches."""
    engine, started = runner.engine, time.perf_counter()
    engine.sequence_pool.forget()
    limits = Limits(max_new_tokens=spec.max_new_tokens, stop_ids=frozenset())
    outputs: dict[int, list[int]] = {}
    for prompt in prompts:
        request = Request(
            prompt=tuple(prompt), limits=limits, chain_len=spec.chain_len, reuse=reuse
        )
        outputs[engine.add(request)] = []
    first, cached = list[float](), 0
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Tokens):
                if not outputs[event.request]:
                    first.append(time.perf_counter() - started)
                outputs[event.request] += event.tokens
            elif isinstance(event, Finished):
                cached += event.reused
    return PrefixTimes(
        reuse=reuse,
        first_mean=statistics.fmean(first),
        first_longest=max(first),
        seconds=time.perf_counter() - started,
        cached_tokens=cached,
        prompt_tokens=sum(map(len, prompts)),
        tokens=list(outputs.values()),
    )


def median_run(runs: Sequence[PrefixTimes]) -> PrefixTimes:
    """Return the median run by the mean time to the first token."""
    return sorted(runs, key=lambda run: run.first_mean)[len(runs) // 2]
