"""What do fewer bits cost? One artifact's greedy answers under others of the same target.

\b
    python scripts/eval_perplexity.py smol-float32 smol-int8 smol-int4 \\
        --prompts-jsonl benchmarks/prompts/eight_kinds.jsonl

The first artifact answers, plainly. Each, the first included, is then given prompts and answers,
and its own `target_verify` says how likely it finds the answers' tokens, each behind those before.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import read_prompts
from eagle_aot.runtime_runner import Runner, load_artifact
from eagle_aot.runtime_runner.rounds.step import chain_rows
from shared.header import header, title_lines
from shared.options import commit_option, json_option
from shared.spread import spread

COLUMNS = "artifact", "answers' tokens", "perplexity", "of the first", "its own choice too"
REPORT_WIDTH = 120

Text = tuple[list[int], list[int]]
"""Prompt and answer, token ids."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One artifact's; `agreement` is the share of tokens that it would have chosen itself."""

    artifact: str
    tokens: int
    perplexity: float
    agreement: float


@eagle_command
@click.argument("artifacts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--prompts-jsonl", required=True, type=click.Path(path_type=Path))
@click.option("--prompts", "count", type=click.IntRange(min=1), default=20, show_default=True,
              help="So many of them, taken evenly.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@commit_option
@json_option
def main(
    artifacts: tuple[Path, ...],
    prompts_jsonl: Path,
    count: int,
    max_new_tokens: int,
    commit: str | None,
    as_json: bool,
) -> None:
    """Perplexity of the first of ARTIFACTS' answers under all of them."""
    prompts = read_prompts(None, None, prompts_jsonl)
    chosen = spread(prompts, count)
    texts: list[Text] = []
    lines: list[Line] = []
    for path in artifacts:
        runner = load_artifact(path)
        if not texts:
            encoded = [runner.encode(prompt) for prompt in chosen]
            texts = [(ids, answer(runner, ids, max_new_tokens)) for ids in encoded]
        lines.append(judged(path, runner, texts))
    head = header(f"greedy answers of {artifacts[0].name}", commit)
    if as_json:
        click.echo(json.dumps({**asdict(head), "lines": [asdict(line) for line in lines]}))
        return
    console = Console(width=REPORT_WIDTH, highlight=False)
    console.print(*title_lines(head), "", sep="\n")
    console.print(table(lines))


def answer(runner: Runner, prompt: list[int], max_new_tokens: int) -> list[int]:
    """By plain decoding."""
    return runner.generate(prompt, max_new_tokens, speculate=False).token_ids


def judged(path: Path, runner: Runner, texts: list[Text]) -> Line:
    """All answers under one artifact."""
    found = [likelihood(runner, prompt, answer) for prompt, answer in texts]
    tokens = sum(len(answer) for _, answer in texts)
    return Line(
        artifact=path.name,
        tokens=tokens,
        perplexity=math.exp(sum(nats for nats, _ in found) / tokens),
        agreement=sum(same for _, same in found) / tokens,
    )


def likelihood(runner: Runner, prompt: list[int], answer: list[int]) -> tuple[float, int]:
    """Nats that an answer's tokens cost, and how many of them are the most likely ones."""
    logits = torch.cat(list(all_logits(runner, [*prompt, *answer])))
    behind = logits[len(prompt) - 1 : -1]
    tokens = torch.tensor(answer)
    nats = F.cross_entropy(behind.double(), tokens, reduction="sum")
    return float(nats), int((behind.argmax(dim=-1) == tokens).sum())


def all_logits(runner: Runner, ids: list[int]) -> Iterator[Tensor]:
    """Of all rows of a text, in pieces float32 [T, V]. Raises SettingError where it has no room."""
    constants = runner.constants
    if len(ids) > constants.max_seq_len:
        raise SettingError(f"{len(ids)} tokens: {runner.directory} has {constants.max_seq_len}")
    sequence = torch.zeros(1, dtype=torch.int64)
    for start in range(0, len(ids), constants.max_rows):
        tokens = torch.tensor([ids[start : start + constants.max_rows]])
        step = chain_rows(tokens, torch.tensor([start]), sequence, constants.tail)
        yield runner.verify(step).logits[0]


def table(lines: list[Line]) -> Table:
    """For people."""
    found = Table(*COLUMNS)
    for line in lines:
        found.add_row(
            line.artifact,
            str(line.tokens),
            f"{line.perplexity:.4f}",
            f"{line.perplexity / lines[0].perplexity:.4f}",
            f"{line.agreement:.4f}",
        )
    return found


if __name__ == "__main__":
    main()
