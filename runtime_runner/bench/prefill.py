"""Filling the caches with a context, and what that costs."""

import statistics

import torch

from eagle_aot.runtime_runner.bench.parts import fill_randomly
from eagle_aot.runtime_runner.bench.results import Prefill
from eagle_aot.runtime_runner.bench.timing import Clock, HostSpan, Series, Timed
from eagle_aot.runtime_runner.generate import prefill
from eagle_aot.runtime_runner.round import rows
from eagle_aot.runtime_runner.runner import Runner
from eagle_aot.runtime_runner.stats import Stats

FILLS = 3


def fill(runner: Runner, chain_len: int, context: int, repeats: int) -> Prefill:
    """Fill target and drafter with `context` random tokens, ready for rounds of `chain_len`.

    Wall time, which is the median of a few times, after one that does not count.
    """
    fill_once(runner, chain_len, context)
    times = [fill_once(runner, chain_len, context) for _ in range(min(FILLS, repeats))]
    return Prefill(tokens=context, ms=statistics.median(times))


def fill_once(runner: Runner, chain_len: int, context: int) -> float:
    """Milliseconds until the first new token is on the host."""
    prompt = torch.randint(runner.constants.vocab_size, (context,)).tolist()
    span = HostSpan()
    prefill(runner.round(chain_len), prompt, Stats(chain_len=chain_len))
    span.stop()
    return span.milliseconds()


def longest_chunk(runner: Runner, clock: Clock, repeats: int) -> Prefill:
    """The longest chunk that a prompt is cut into, in the target alone, from position 0 on."""
    constants, verifier = runner.constants, runner.verifier
    length = max(map(len, verifier.plan_prompt(constants.max_seq_len)))
    tokens, input_pos = rows([0] * length, 0, runner.executor.device)
    timed = Timed(
        play=lambda: verifier.forward(tokens, input_pos)[0],
        prepare=lambda: fill_randomly(tokens, constants.vocab_size),
    )
    series = Series(clock, timed)
    for _ in range(repeats):
        series.sample()
    return Prefill(tokens=length, ms=series.ms)
