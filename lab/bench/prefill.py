"""Filling the caches with a context, and how long that takes."""

import statistics
from collections.abc import Iterable

import torch

from eagle_aot.lab.bench.parts import fill_randomly
from eagle_aot.lab.bench.results import PrefillTime
from eagle_aot.lab.bench.timing import Clock, HostSpan, Series, Timed
from eagle_aot.runtime_runner.decode.batch_state import BatchState
from eagle_aot.runtime_runner.decode.prefill import prefill
from eagle_aot.runtime_runner.decode.round import Round
from eagle_aot.runtime_runner.decode.stats import Stats
from eagle_aot.runtime_runner.runner import Runner

FILLS = 3


def fill_all(runner: Runner, sequences: Iterable[int], context: int) -> None:
    """Fill target and drafter caches of sequences with random tokens."""
    for sequence in sequences:
        runner.reserve(sequence, context)
        prompt = torch.randint(runner.constants.vocab_size, (context,)).tolist()
        running = BatchState([sequence], runner.constants.tail, runner.executor.device)
        prefill(Round(runner.target, runner.drafter, 0, running), prompt, Stats(chain_len=0))


def fill(runner: Runner, chain_len: int, context: int, repeats: int) -> PrefillTime:
    """Fill target and drafter with `context` random tokens, ready for rounds of `chain_len`.

    The time is the median wall time of a few fills, after one that does not count.
    """
    fill_once(runner, chain_len, context)
    times = [fill_once(runner, chain_len, context) for _ in range(min(FILLS, repeats))]
    return PrefillTime(tokens=context, ms=statistics.median(times))


def fill_once(runner: Runner, chain_len: int, context: int) -> float:
    """Return the milliseconds until the first new token is on the host."""
    prompt = torch.randint(runner.constants.vocab_size, (context,)).tolist()
    span = HostSpan()
    prefill(runner.round(chain_len), prompt, Stats(chain_len=chain_len))
    span.stop()
    return span.milliseconds()


def longest_chunk(runner: Runner, clock: Clock, repeats: int) -> PrefillTime:
    """Time the longest prompt chunk, in the target alone, from position 0."""
    constants, target, device = runner.constants, runner.target, runner.executor.device
    chunk = max(target.plan_prompt(constants.max_seq_len), key=len)
    tokens = torch.zeros(1, len(chunk), dtype=torch.int64, device=device)
    positions, sequences = torch.arange(len(chunk), device=device), torch.zeros_like(tokens[0, :1])
    timed = Timed(
        run=lambda: target.run_prompt(tokens, positions, sequences, chunk).logits,
        prepare=lambda: fill_randomly(tokens, constants.vocab_size),
    )
    series = Series(clock, timed)
    for _ in range(repeats):
        series.sample()
    return PrefillTime(tokens=len(chunk), ms=series.ms)
