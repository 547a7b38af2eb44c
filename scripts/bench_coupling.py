"""How often is a head's draft right when the target samples? Beside what else could be drafted.

\b
    python scripts/bench_coupling.py smollm2-int8 --prompts-jsonl prompts.jsonl

Head and target share their noise: the draft is what the head would draw with the target's. On the
same logits: a head's likeliest token, which the target then draws with the probability that it has;
and the optimum of a pair of draws, one from each distribution: the sum of min(p, q) over all
tokens. Speculative sampling reaches that, and its text depends on the draft; ours does not.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import click
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import UnsupportedError
from eagle_aot.common.prompts import Prompt, read_prompts
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.bench.settings import numbers
from eagle_aot.runtime_runner.checks.request import check_prompt
from eagle_aot.runtime_runner.drafters.eagle3 import Eagle3Drafter
from eagle_aot.runtime_runner.generate import prefill
from eagle_aot.runtime_runner.results.stats import Stats
from eagle_aot.runtime_runner.rounds.round import Round, Running
from eagle_aot.runtime_runner.sampling.parameters import Sampling
from eagle_aot.runtime_runner.sampling.sampler import Sampler
from shared.header import header, title_lines
from shared.options import commit_option, json_option
from shared.spread import spread
from shared.watched import WatchedTarget


class Drafted(NamedTuple):
    """One draft: whether it was right, and with what chance others would have been."""

    came: float
    likeliest: float
    optimum: float


@dataclass(frozen=True, slots=True)
class Line:
    """Means over the drafts of one temperature."""

    temperature: float
    drafts: int
    shared_noise: float
    likeliest: float
    optimum: float


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompts-jsonl", type=click.Path(path_type=Path), required=True)
@click.option("--count", type=click.IntRange(min=1), help="Prompts at most.")
@click.option("--temperatures", default="0.3,0.7,1,1.5", show_default=True, metavar="T,...")
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=64, show_default=True)
@commit_option
@json_option
def main(
    artifact: Path,
    prompts_jsonl: Path,
    count: int | None,
    temperatures: str,
    max_new_tokens: int,
    commit: str | None,
    as_json: bool,
) -> None:
    """Draft one token a round for ARTIFACT's target as it samples."""
    wanted = numbers("--temperatures", temperatures, float)
    every = read_prompts(None, None, prompts_jsonl)
    prompts = spread(every, count or len(every))
    runner = load_artifact(artifact)
    if not isinstance(runner.drafter, Eagle3Drafter):
        raise UnsupportedError(f"{artifact}: its drafts have no probabilities")
    lines = [line_of(runner, runner.drafter, prompts, t, max_new_tokens) for t in wanted]
    head = header(f"drafts of {artifact.name} under sampling", commit)
    if as_json:
        click.echo(json.dumps({**asdict(head), "lines": [asdict(line) for line in lines]}))
        return
    console = Console(width=120, highlight=False)
    console.print(*title_lines(head), "", table(lines), sep="\n")


def line_of(
    runner: Runner,
    drafter: Eagle3Drafter,
    prompts: Sequence[Prompt],
    temperature: float,
    tokens: int,
) -> Line:
    """All prompts, each with a seed of its own."""
    found: list[Drafted] = []
    shown = track(prompts, console=Console(stderr=True), transient=True)
    for seed, prompt in enumerate(shown):
        sampling = Sampling(temperature=temperature, seed=seed)
        found += drafted(runner, drafter, prompt, sampling, tokens)
    means = [fmean(values) for values in zip(*found, strict=True)]
    return Line(temperature, len(found), *means)


@torch.no_grad()
def drafted(
    runner: Runner, drafter: Eagle3Drafter, prompt: Prompt, sampling: Sampling, tokens: int
) -> Iterator[Drafted]:
    """Of one text, round by round."""
    ids, constants, device = runner.encode(prompt), runner.constants, runner.executor.device
    check_prompt(ids, constants)
    sampler = Sampler(1, device, constants.max_seq_len, constants.vocab_size)
    sampler.begin(0, sampling, ids)
    target = WatchedTarget(runner.target)
    running = Running([0], constants.tail, device, sampler)
    round_ = Round(target, drafter, 1, running)
    prefill(round_, ids, Stats(chain_len=1))
    left = min(tokens, constants.max_seq_len - len(ids) - constants.tail)
    while left > 0:
        head = chances(drafter.logits(running.sequences)[0, 0], sampling)
        (outcome,) = round_.outcomes(round_.step())
        yield judged(chances(target.last[0, 0], sampling), head, drafter, outcome.accepted == 1)
        emitted = outcome.tokens[: outcome.accepted + 1]
        left -= len(emitted)
        if {*constants.eos_ids} & {*emitted}:
            return


def chances(logits: Tensor, sampling: Sampling) -> Tensor:
    """float32 [V] -> float64 [V]."""
    return (logits.double() / sampling.temperature).softmax(dim=0)


def judged(target: Tensor, head: Tensor, drafter: Eagle3Drafter, came: bool) -> Drafted:
    """Of the target's probabilities [V] and the head's, which may be of fewer tokens."""
    if drafter.target_ids is not None:
        target = target[drafter.target_ids]
    optimum = torch.minimum(target, head).sum()
    return Drafted(float(came), float(target[head.argmax()]), float(optimum))


def table(lines: Sequence[Line]) -> Table:
    """How often drafts are right."""
    shown = Table("temperature", "drafts", "shared noise", "head's likeliest", "optimum",
                  "of the optimum")  # fmt: skip
    for line in lines:
        shares = (f"{share:.3f}" for share in (line.shared_noise, line.likeliest, line.optimum))
        of = f"{line.shared_noise / line.optimum:.3f}"
        shown.add_row(f"{line.temperature:g}", f"{line.drafts:,}", *shares, of)
    return shown


if __name__ == "__main__":
    main()
