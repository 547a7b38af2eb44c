"""What running texts feel of a long prompt that is computed beside them, and it of them.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 8
    python scripts/bench_beside.py gemma4-tiny-xnnpack --batch-sizes 1,4 --prompt 1024

Times between a text's runs of tokens, with nobody else and while the prompt is computed. Its chunks
come between their rounds and take `--share` of the time: with a half, each text takes twice its own
on average, in as many steps as the prompt has chunks.
"""

import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.lab.bench.settings import check_range
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import (
    commit_option,
    drafter_option,
    json_option,
    no_cuda_graph_option,
    numbers,
)
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.engine import Engine, Limits, Request
from eagle_aot.runtime_runner.engine.engine import PROMPT_SHARE

SHORT = 65
"""Tokens of the running texts' own prompts."""
ALONE = 40
"""Rounds with nobody else."""
Step = tuple[float, set[int]]
"""Of the engine: milliseconds, and the requests that were told of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """`texts` beside a prompt: milliseconds between two runs of tokens with nobody else, and while
    the prompt is computed; milliseconds of the prompt, alone and beside them."""

    texts: int
    alone_ms: float
    mean_ms: float
    median_ms: float
    longest_ms: float
    prompt_alone_ms: float
    prompt_ms: float


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--batch-sizes", default="1,4", show_default=True, callback=numbers,
              help="Running texts.")  # fmt: skip
@click.option("--prompt", type=click.IntRange(min=1), default=8192, show_default=True,
              help="Tokens of the prompt.")  # fmt: skip
@click.option("--chain-len", type=click.IntRange(min=0), default=4, show_default=True)
@click.option("--share", type=float, default=PROMPT_SHARE, show_default=True,
              help="Of the time, for prompts.")  # fmt: skip
@drafter_option
@no_cuda_graph_option
@commit_option
@json_option
def main(
    artifact: Path,
    batch_sizes: list[int],
    prompt: int,
    chain_len: int,
    share: float,
    drafter: str | None,
    no_cuda_graph: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Time texts of ARTIFACT beside a prompt."""
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph, drafter=drafter)
    check_range("--batch-sizes", batch_sizes, runner.constants.max_batch_size - 1)
    check_range("--prompt", [prompt], runner.constants.max_seq_len - runner.constants.tail)
    runner.warm_up(max(batch_sizes), chain_len)
    lines = [Beside(runner, share, chain_len).measure(texts, prompt) for texts in batch_sizes]
    head = header(f"texts of {artifact.name} beside a prompt of {prompt:,} tokens", commit)
    if as_json:
        click.echo(json.dumps({**asdict(head), "lines": [asdict(line) for line in lines]}))
        return
    console = Console(highlight=False, width=120)
    console.print(*title_lines(head), table(lines), sep="\n")


class Beside:
    """An engine of texts that do not end by themselves."""

    def __init__(self, runner: Runner, share: float, chain_len: int) -> None:
        self._engine = Engine(runner.engine.schedule, share)
        self._chain_len = chain_len
        self._vocab = runner.constants.vocab_size
        self._longest = runner.constants.max_seq_len

    def measure(self, texts: int, prompt: int) -> Line:
        """The prompt alone, the texts alone, and both; all of them are gone behind it."""
        prompt_alone = sum(ms for ms, _ in self._until_told(self._add(prompt, room=1)))
        running = {self._add(SHORT) for _ in range(texts)}
        while len(self._engine.running) < texts:
            self._engine.step()
        alone = [self._step()[0] for _ in range(ALONE)]
        steps = list(self._until_told(self._add(prompt, room=1)))
        between = list(sums(steps, running))
        for text in running:
            self._engine.cancel(text)
        self._engine.step()
        return Line(
            texts=texts,
            alone_ms=statistics.median(alone),
            mean_ms=statistics.fmean(between),
            median_ms=statistics.median(between),
            longest_ms=max(between),
            prompt_alone_ms=prompt_alone,
            prompt_ms=sum(ms for ms, _ in steps),
        )

    def _add(self, length: int, room: int | None = None) -> int:
        prompt = tuple(torch.randint(self._vocab, (length,)).tolist())
        limits = Limits(room=room or self._longest - length, stop_ids=frozenset())
        return self._engine.add(Request(prompt=prompt, limits=limits, chain_len=self._chain_len))

    def _until_told(self, number: int) -> Iterator[Step]:
        told = set[int]()
        while number not in told:
            step = self._step()
            told = step[1]
            yield step

    def _step(self) -> Step:
        started = time.perf_counter()
        told = {event.request for event in self._engine.step()}
        return 1e3 * (time.perf_counter() - started), told


def sums(steps: Iterable[Step], running: set[int]) -> Iterator[float]:
    """Milliseconds from one step with tokens of those that run to the next one."""
    spent = 0.0
    for ms, told in steps:
        spent += ms
        if told & running:
            yield spent
            spent = 0.0


def table(lines: Sequence[Line]) -> Table:
    """Times of running texts, and of the prompt."""
    shown = Table("texts", "alone: ms", "beside, mean", "median", "longest", "prompt alone: ms",
                  "beside")  # fmt: skip
    for line in lines:
        beside = [f"{ms:.2f} ({ms / line.alone_ms:.2f}x)" for ms in (line.mean_ms, line.median_ms)]
        shown.add_row(
            *(str(line.texts), f"{line.alone_ms:.2f}", *beside, f"{line.longest_ms:.1f}"),
            f"{line.prompt_alone_ms:,.1f}",
            f"{line.prompt_ms:,.1f} ({line.prompt_ms / line.prompt_alone_ms:.2f}x)",
        )
    return shown


if __name__ == "__main__":
    main()
