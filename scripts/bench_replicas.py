"""What replicas bring a file of prompts: `eagle-batch` with one of them and with several.

\b
    python scripts/write_prompts.py prompts.jsonl --problems 1000
    python scripts/bench_replicas.py gemma4-tiny-cuda prompts.jsonl --replicas 1,2

Each replica takes a GPU where there are any. Ray and the replicas take a while to come up, so
tokens a second are of what is written behind the first block of answers. All must write the same.
What replicas bring a server is `scripts/bench_server.py --replicas`.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import UnsupportedError
from shared.header import header, title_lines
from shared.number_list import numbers
from shared.options import commit_option, json_option

MODULE = "eagle_aot.runtime_runner.serve.on_ray.batch"
POLLED_S = 0.05
REPORT_WIDTH = 140


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A file of answers: seconds until its first block of `first_answers` was there and until all
    were, tokens in all, and a second behind that block, None where it was the only one."""

    replicas: int
    answers: int
    first_answers: int
    tokens: int
    first_seconds: float
    seconds: float
    tokens_per_second: float | None


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("prompts_jsonl", type=click.Path(path_type=Path))
@click.option("--replicas", callback=numbers, default="1,2", show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=128, show_default=True)
@commit_option
@json_option
def main(
    artifact: Path,
    prompts_jsonl: Path,
    replicas: list[int],
    max_new_tokens: int,
    commit: str | None,
    as_json: bool,
) -> None:
    """Time `eagle-batch` of ARTIFACT on PROMPTS_JSONL. Exits with 1 where answers differ."""
    with tempfile.TemporaryDirectory(prefix="replicas-") as directory:
        files = [Path(directory) / f"{count}.jsonl" for count in replicas]
        found = [
            written(artifact, prompts_jsonl, file, count, max_new_tokens)
            for count, file in zip(replicas, files, strict=True)
        ]
        same = all(token_ids(file) == token_ids(files[0]) for file in files)
    head = header(f"{artifact.name}, a file of prompts", commit)
    if as_json:
        click.echo(json.dumps({**asdict(head), "lines": [asdict(x) for x in found], "same": same}))
    else:
        console = Console(width=REPORT_WIDTH, highlight=False)
        console.print(*title_lines(head), table(found), sep="\n")
        console.print(f"{found[0].answers} answers, {'the same' if same else 'not the same'}")
    if not same:
        raise click.ClickException("answers depend on how many replicas there are")


def written(
    artifact: Path, prompts: Path, answers: Path, replicas: int, max_new_tokens: int
) -> Written:
    """One run, watched by what it writes. Raises UnsupportedError where it fails."""
    command = [sys.executable, "-m", MODULE, str(artifact), str(prompts), str(answers), "--quiet"]
    command += ["--replicas", str(replicas), "--max-new-tokens", str(max_new_tokens)]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        at_first, first = until(process, answers, 1)
        _, last = until(process, answers, len(prompts.read_text("utf-8").splitlines()))
        if process.wait():
            log.seek(0)
            raise UnsupportedError(f"eagle-batch failed: {log.read()[-2000:]}")
    counts = [len(ids) for ids in token_ids(answers)]
    behind = sum(islice(counts, at_first, None))
    return Written(
        replicas=replicas,
        answers=len(counts),
        first_answers=at_first,
        tokens=sum(counts),
        first_seconds=first - began,
        seconds=last - began,
        tokens_per_second=behind / (last - first) if behind else None,
    )


def until(process: subprocess.Popen[bytes], file: Path, lines: int) -> tuple[int, float]:
    """Wait for so many lines, or for the process; how many there are, and when that was."""
    found = 0
    while process.poll() is None and found < lines:
        time.sleep(POLLED_S)
        found = file.read_bytes().count(b"\n") if file.exists() else 0
    return found, time.perf_counter()


def token_ids(file: Path) -> list[list[int]]:
    """Of its answers, in their order."""
    return [json.loads(line)["token_ids"] for line in file.read_text("utf-8").splitlines()]


def table(found: list[Written]) -> Table:
    """One line for each number of replicas."""
    names = ("replicas", "tokens/s", "x the first", "first block s", "all s", "tokens")
    drawn = Table()
    for name in names:
        drawn.add_column(name, justify="right")
    base = found[0].tokens_per_second
    for one in found:
        speed = one.tokens_per_second
        ratio = f"{speed / base:.2f}" if speed and base else "-"
        told = f"{speed:,.0f}" if speed else "-"
        drawn.add_row(str(one.replicas), told, ratio, f"{one.first_seconds:.1f}",
                      f"{one.seconds:.1f}", f"{one.tokens:,}")  # fmt: skip
    return drawn


if __name__ == "__main__":
    main()
