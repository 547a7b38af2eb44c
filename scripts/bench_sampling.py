"""What choosing tokens costs: the likeliest, with noise, and with all processors.

\b
    python scripts/bench_sampling.py --vocab 262144 --rows 8,32,64
    python scripts/bench_sampling.py --vocab 49152 --rows 1,5,8

On a GPU where there is one, in a CUDA graph as in a recorded round, else on one thread of the CPU.
"""

import statistics
import time
from collections.abc import Callable

import click
import torch
from torch import Tensor

from eagle_aot.runtime_runner.sampling.parameters import GREEDY, Sampling
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from shared.number_list import numbers

KINDS = {
    "greedy": GREEDY,
    "temperature": Sampling(temperature=1.0, seed=1),
    "top-k": Sampling(temperature=1.0, top_k=50, seed=1),
    "top-p": Sampling(temperature=1.0, top_p=0.95, seed=1),
    "all": Sampling(
        temperature=1.0, top_k=200, top_p=0.95, min_p=0.01, repetition_penalty=1.1,
        presence_penalty=0.1, frequency_penalty=0.1, seed=1,
    ),
    "greedy, told": Sampling(logprobs=20),
}  # fmt: skip
REPEATS = 30
PATH = 4  # drafts


@click.command()
@click.option("--vocab", type=int, default=262_144, show_default=True)
@click.option("--rows", default="8,32,64", show_default=True, callback=numbers)
def main(vocab: int, rows: list[int]) -> None:
    """Print milliseconds for each kind of choice, the median of 30."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    for count in rows:
        logits = torch.randn(1, count, vocab, device=device) * 4
        found = {name: milliseconds(choice(logits, how)) for name, how in KINDS.items()}
        times = ", ".join(f"{name} {ms:.3f}" for name, ms in found.items())
        click.echo(f"{device}, {count} rows of {vocab}: {times} ms")


def choice(logits: Tensor, how: Sampling) -> Callable[[], object]:
    """Choosing in all rows, each behind `PATH` drafts."""
    device, count = logits.device, logits.shape[1]
    sampler = Sampler(1, device, length=1024, vocab=logits.shape[2])
    sampler.begin(0, how, list(range(100)))
    positions = torch.arange(100, 100 + count, device=device).unsqueeze(0)
    sequences = torch.zeros(1, dtype=torch.int64, device=device)
    paths = torch.arange(PATH, device=device).expand(1, count, -1)

    def choose() -> Tensor:
        processed = sampler.processed(logits, positions, sequences, paths)
        tokens = sampler.choose(processed, positions, sequences)
        if sampler.tells:
            sampler.logprobs(logits, processed, tokens, sequences)
        return tokens

    if device.type == "cpu":
        return choose
    choose()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        choose()
    return graph.replay


def milliseconds(call: Callable[[], object]) -> float:
    """The median: of the host's clock for a GPU, of the process's own time for a CPU."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    times = []
    for _ in range(REPEATS):
        synchronize()
        started = clock()
        call()
        synchronize()
        times.append(clock() - started)
    return statistics.median(times) * 1e3


def synchronize() -> None:
    """Wait for a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
