"""What does a rounded output table cost? How likely a target finds texts, with each kind of table.

\b
    python scripts/eval_text.py smollm2 --prompts-jsonl benchmarks/prompts/eight_kinds.jsonl

The prompts, one after another behind the token that ends a text, are read in pieces by PyTorch, in
float32; nothing is exported.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import read_prompts
from eagle_aot.export import Source, load_pair
from eagle_aot.export.prepare.fold import fold_int4
from eagle_aot.targets import TapTarget
from eagle_aot.targets.decoder.kv_cache import CacheSpec
from eagle_aot.targets.int4.quantisers import QUANTS
from shared.header import header, title_lines
from shared.options import commit_option, json_option

COLUMNS = "table", "tokens", "perplexity", "the first one's choice too"


@dataclass(frozen=True, kw_only=True)
class Line:
    """Of one kind of table; `agreement` is the share of rows that choose as the first one's do."""

    table: str
    tokens: int
    perplexity: float
    agreement: float


@eagle_command
@click.argument("target_dir", type=click.Path(path_type=Path))
@click.option("--prompts-jsonl", required=True, type=click.Path(path_type=Path))
@click.option("--tokens", type=click.IntRange(min=2), default=4096, show_default=True)
@click.option("--piece", type=click.IntRange(min=2), default=512, show_default=True,
              help="Tokens that are read together.")  # fmt: skip
@commit_option
@json_option
def main(
    target_dir: Path, prompts_jsonl: Path, tokens: int, piece: int, commit: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Perplexity of prompts under the target in TARGET_DIR, a directory or a GGUF file."""
    lines: list[Line] = []
    choices: list[int] = []
    for kind in QUANTS:
        source = Source.find("auto", target_dir, None, "auto", table_quant=kind)
        pair = load_pair(source, torch.float32, CacheSpec(piece, torch.float32)).pair
        ids = list(stream(source, prompts_jsonl))[:tokens]
        nats, chosen = likelihood(fold_int4(pair).target, ids, piece)
        choices = choices or chosen
        same = sum(a == b for a, b in zip(chosen, choices, strict=True))
        count = len(chosen)
        lines.append(
            Line(
                table=kind,
                tokens=count,
                perplexity=math.exp(nats / count),
                agreement=same / count,
            )
        )
    head = header(f"{target_dir.name}, {prompts_jsonl.name}", commit)
    if as_json:
        click.echo(json.dumps({**asdict(head), "lines": [asdict(line) for line in lines]}))
        return
    console = Console(width=100, highlight=False)
    console.print(*title_lines(head), "", sep="\n")
    console.print(table(lines))


def stream(source: Source, prompts_jsonl: Path) -> Iterator[int]:
    """All prompts' ids. Raises SettingError where nothing ends a text."""
    tokenizer, ends = source.provenance.tokenizer, source.provenance.eos_ids
    if not ends:
        raise SettingError(f"{source.target_dir}: names no token that ends a text")
    for prompt in read_prompts(None, None, prompts_jsonl):
        yield ends[0]
        yield from prompt if isinstance(prompt, list) else tokenizer.encode(prompt, raw=True)


@torch.inference_mode()
def likelihood(target: TapTarget, ids: Sequence[int], piece: int) -> tuple[float, list[int]]:
    """Nats that all tokens but each piece's first cost, and what the target would have chosen."""
    nats, chosen = 0.0, []
    for start in range(0, len(ids) - 1, piece):
        tokens = torch.tensor([ids[start : start + piece]])
        target.reset_cache()
        logits, _ = target.forward_logits_taps(tokens, torch.arange(tokens.shape[1]))
        rows, behind = logits[0, :-1], tokens[0, 1:]
        nats += float(F.cross_entropy(rows.double(), behind, reduction="sum"))
        chosen += rows.argmax(dim=-1).tolist()
    return nats, chosen


def table(lines: list[Line]) -> Table:
    """For people."""
    found = Table(*COLUMNS)
    for line in lines:
        numbers = str(line.tokens), f"{line.perplexity:.4f}", f"{line.agreement:.4f}"
        found.add_row(line.table, *numbers)
    return found


if __name__ == "__main__":
    main()
