"""What requests that begin alike wait for their first tokens, with reuse of their rows and without.

\b
    eagle-export --target-model gemma4-tiny --max-batch-size 8
    python scripts/bench_prefix.py gemma4-tiny-xnnpack --requests 8 --prefix 400

All come at once. The tokens of their prompts are random, and the same each time. Of several
repetitions, with reuse and without in turn, the one in the middle is told.
"""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.lab.bench.settings import check_range
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import commit_option, drafter_option, json_option, no_cuda_graph_option
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.engine import Finished, Limits, Request, Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Seconds until first tokens, on average and at most, and until all was said; tokens of prompts
    that were not run; and the tokens of each answer."""

    reuse: bool
    first_mean: float
    first_longest: float
    seconds: float
    cached_tokens: int
    prompt_tokens: int
    tokens: list[list[int]]


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--requests", "count", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--prefix", type=click.IntRange(min=1), default=400, show_default=True,
              help="Tokens that all prompts begin with.")  # fmt: skip
@click.option("--own", type=click.IntRange(min=1), default=40, show_default=True,
              help="Tokens behind them, each prompt's own.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--chain-len", type=click.IntRange(min=0), default=4, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@drafter_option
@no_cuda_graph_option
@commit_option
@json_option
def main(
    artifact: Path,
    count: int,
    prefix: int,
    own: int,
    max_new_tokens: int,
    chain_len: int,
    repeats: int,
    drafter: str | None,
    no_cuda_graph: bool,
    commit: str | None,
    as_json: bool,
) -> None:
    """Time requests to ARTIFACT that begin alike. Exits with 1 when reuse changes a token."""
    runner = load_artifact(artifact, cuda_graphs=not no_cuda_graph, drafter=drafter)
    longest = runner.constants.max_seq_len - max_new_tokens
    check_range("--prefix and --own", [prefix + own], longest)
    runner.warm_up(chain_len=chain_len)
    prompts = made_up(count, prefix, own, runner.constants.vocab_size)
    limits = Limits(room=max_new_tokens, stop_ids=frozenset())
    reuses = False, True
    runs = [measure(runner, prompts, limits, chain_len, r) for _ in range(repeats) for r in reuses]
    lines = [middle([run for run in runs if run.reuse == reuse]) for reuse in reuses]
    head = header(f"{count} requests to {artifact.name}, {prefix} tokens of each the same", commit)
    if as_json:
        click.echo(json.dumps({**asdict(head), "lines": [asdict(line) for line in lines]}))
    else:
        Console(highlight=False, width=120).print(*title_lines(head), table(lines), sep="\n")
    if any(run.tokens != runs[0].tokens for run in runs):
        raise click.ClickException("tokens differ")


def made_up(count: int, prefix: int, own: int, vocabulary: int) -> list[list[int]]:
    """Prompts of random tokens, the first `prefix` of them the same."""
    rng = torch.Generator().manual_seed(1)
    shared = torch.randint(vocabulary, (prefix,), generator=rng).tolist()
    behind = torch.randint(vocabulary, (count, own), generator=rng).tolist()
    return [shared + tokens for tokens in behind]


def measure(
    runner: Runner, prompts: Sequence[Sequence[int]], limits: Limits, chain_len: int, reuse: bool
) -> Line:
    """Serve all of them, in caches of which nothing is known."""
    engine, started = runner.engine, time.perf_counter()
    engine.sequences.forget()
    said: dict[int, list[int]] = {}
    for prompt in prompts:
        asked = Request(prompt=tuple(prompt), limits=limits, chain_len=chain_len, reuse=reuse)
        said[engine.add(asked)] = []
    first, cached = list[float](), 0
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Tokens):
                if not said[event.request]:
                    first.append(time.perf_counter() - started)
                said[event.request] += event.tokens
            elif isinstance(event, Finished):
                cached += event.kept
    return Line(
        reuse=reuse,
        first_mean=statistics.fmean(first),
        first_longest=max(first),
        seconds=time.perf_counter() - started,
        cached_tokens=cached,
        prompt_tokens=sum(map(len, prompts)),
        tokens=list(said.values()),
    )


def middle(runs: Sequence[Line]) -> Line:
    """By the time to the first token."""
    return sorted(runs, key=lambda run: run.first_mean)[len(runs) // 2]


def table(lines: Sequence[Line]) -> Table:
    """Times, without reuse first."""
    shown = Table("reuse", "first token, mean: s", "longest", "all: s", "prompt tokens", "not run")
    for line in lines:
        shown.add_row(
            *("yes" if line.reuse else "no", f"{line.first_mean:.3f}", f"{line.first_longest:.3f}"),
            *(f"{line.seconds:.3f}", f"{line.prompt_tokens:,}", f"{line.cached_tokens:,}"),
        )
    return shown


if __name__ == "__main__":
    main()
