"""Artifacts beside llama.cpp and transformers: the same prompts, the same cores, in one run.

\b
    python scripts/bench_peers.py smol-int8 --gguf smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \\
        --prompts-jsonl benchmarks/prompts/eight_kinds.jsonl

Each program has a process of its own and decodes greedily, one prompt at a time, in turn with the
others and in a rotating order, so that a drift of the machine meets all of them. Each has decoded
the first prompt before, unmeasured. Texts differ: llama.cpp and INT8 round what a layer reads.
"""

import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from eagle_aot.artifact import Manifest
from eagle_aot.common.command import eagle_command
from eagle_aot.common.errors import SettingError, UnsupportedError
from eagle_aot.common.prompts import Prompt, is_ids, read_prompts
from eagle_aot.common.tokenizer import read_tokenizer
from eagle_aot.lab.header import header, title_lines
from eagle_aot.lab.options import commit_option, json_option
from eagle_aot.lab.worker import Worker
from eagle_aot.runtime_runner.adaptive.chain_length import AUTO_LENGTH

COLUMNS = ("program", "tokens/s", "of {}", "prompt tokens/s", "MB resident", "ready after s",
           "texts as transformers'")  # fmt: skip
LLAMA_CPP, TRANSFORMERS = "llama.cpp", "transformers float32"
PEERS = {
    LLAMA_CPP: ("peers.in_llama_cpp", ("xllamacpp",)),
    TRANSFORMERS: ("peers.in_transformers", ("gguf", "accelerate")),
}
"""By name the module that serves them, and the packages that it needs beside ours."""
REPORT_WIDTH = 120


@dataclass
class Contender:
    """A program with one way to decode, and what it answered, a prompt each."""

    name: str
    worker: Worker
    options: dict[str, Any] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)

    def decode(self, tokens: list[int], max_new_tokens: int) -> dict[str, Any]:
        """One prompt."""
        return self.worker.ask({"tokens": tokens, "max_new_tokens": max_new_tokens, **self.options})


@dataclass(frozen=True, kw_only=True)
class Line:
    """Rates are medians over prompts, of tokens behind the first for decoding; `of_baseline` is
    that of `tokens_per_second`. `same_texts` is None without transformers."""

    program: str
    version: str
    tokens_per_second: float
    of_baseline: float
    prompt_tokens_per_second: float
    resident_bytes: int
    load_seconds: float
    same_texts: int | None


@eagle_command
@click.argument("artifacts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--gguf", required=True, type=click.Path(path_type=Path),
              help="What they were exported from.")  # fmt: skip
@click.option("--prompts-jsonl", required=True, type=click.Path(path_type=Path))
@click.option("--prompts", "count", type=click.IntRange(min=1), default=20, show_default=True,
              help="So many of them, taken evenly.")  # fmt: skip
@click.option("--max-new-tokens", type=click.IntRange(min=2), default=64, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count(), show_default=True,
              help="Of each program.")  # fmt: skip
@commit_option
@json_option
def main(
    artifacts: tuple[Path, ...],
    gguf: Path,
    prompts_jsonl: Path,
    count: int,
    max_new_tokens: int,
    threads: int,
    commit: str | None,
    as_json: bool,
) -> None:
    """Time ARTIFACTS, plainly and with their own drafter, beside llama.cpp and transformers."""
    if not gguf.is_file():
        raise SettingError(f"--gguf {gguf}: no such file: scripts/get_smollm2 gets one")
    prompts = encoded(artifacts[0], read_prompts(None, None, prompts_jsonl), count)
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        contenders = [one for path in artifacts for one in of_artifact(path, threads, stack)]
        for name, (module, needs) in PEERS.items():
            try:
                contenders.append(Contender(name, start(name, module, needs, gguf, threads)))
                stack.callback(contenders[-1].worker.close)
            except UnsupportedError as error:
                skipped[name] = str(error)
        play(contenders, prompts, max_new_tokens)
        lines = report(contenders, prompts)
    show(lines, skipped, f"{len(prompts)} prompts, {threads} threads", commit, as_json)


def encoded(artifact: Path, prompts: list[Prompt], count: int) -> list[list[int]]:
    """`count` of the prompts as token ids, by the artifact's tokenizer and template."""
    tokenizer = read_tokenizer(artifact)
    chosen = prompts[:: max(1, len(prompts) // count)][:count]
    return [list(one) if is_ids(one) else tokenizer.encode(one, False, None) for one in chosen]


def of_artifact(artifact: Path, threads: int, stack: ExitStack) -> Iterator[Contender]:
    """Plain decoding, and drafting as long as it pays."""
    drafter = Manifest.read(artifact).drafter
    worker = Worker(artifact.name, python("eagle_aot.lab.peers.ours", artifact, threads))
    stack.callback(worker.close)
    yield Contender(f"{artifact.name} plain", worker, {"chain_len": 0})
    yield Contender(f"{artifact.name} {drafter} auto", worker, {"chain_len": AUTO_LENGTH})


def start(name: str, module: str, needs: tuple[str, ...], gguf: Path, threads: int) -> Worker:
    """A peer. Raises UnsupportedError where it is not installed, or does not come up."""
    missing = [package for package in needs if importlib.util.find_spec(package) is None]
    if missing:
        raise UnsupportedError(
            f"{', '.join(missing)} not installed: pip install {' '.join(missing)}"
        )
    return Worker(name, python(module, gguf, threads))


def python(module: str, *arguments: object) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def play(contenders: list[Contender], prompts: list[list[int]], max_new_tokens: int) -> None:
    """All prompts by all of them."""
    with Bar(console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("decoding", total=(len(prompts) + 1) * len(contenders))
        for contender in contenders:
            contender.decode(prompts[0], max_new_tokens)
            bar.advance(shown)
        for number, prompt in enumerate(prompts):
            first = number % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                contender.answers.append(contender.decode(prompt, max_new_tokens))
                bar.advance(shown)


def report(contenders: list[Contender], prompts: list[list[int]]) -> list[Line]:
    """A line for each; the baseline is llama.cpp, or who is last without it."""
    by_name = {one.name: one for one in contenders}
    baseline = decode_rate(by_name.get(LLAMA_CPP, contenders[-1]).answers)
    theirs = by_name.get(TRANSFORMERS)
    return [
        Line(
            program=one.name,
            version=one.worker.version,
            tokens_per_second=decode_rate(one.answers),
            of_baseline=decode_rate(one.answers) / baseline,
            prompt_tokens_per_second=statistics.median(
                len(prompt) / answer["prompt_seconds"]
                for prompt, answer in zip(prompts, one.answers, strict=True)
            ),
            resident_bytes=one.worker.resident_bytes(),
            load_seconds=one.worker.load_seconds,
            same_texts=None if theirs is None else same_texts(one, theirs),
        )
        for one in contenders
    ]


def decode_rate(answers: list[dict[str, Any]]) -> float:
    """Median tokens a second, of texts with more than one."""
    return statistics.median(
        (len(answer["tokens"]) - 1) / answer["decode_seconds"]
        for answer in answers
        if len(answer["tokens"]) > 1
    )


def same_texts(one: Contender, other: Contender) -> int:
    """How many answers are the same to the last token."""
    pairs = zip(one.answers, other.answers, strict=True)
    return sum(a["tokens"] == b["tokens"] for a, b in pairs)


def show(
    lines: list[Line], skipped: dict[str, str], what: str, commit: str | None, as_json: bool
) -> None:
    """One JSON object, or a table."""
    head = header(what, commit)
    if as_json:
        found = [asdict(line) for line in lines]
        click.echo(json.dumps({**asdict(head), "lines": found, "skipped": skipped}))
        return
    baseline = LLAMA_CPP if LLAMA_CPP not in skipped else lines[-1].program
    console = Console(width=REPORT_WIDTH, highlight=False)
    console.print(*title_lines(head), "", what, "", sep="\n")
    table = Table(*(column.format(baseline) for column in COLUMNS))
    for line in lines:
        table.add_row(
            line.program,
            f"{line.tokens_per_second:.1f}",
            f"{line.of_baseline:.2f}",
            f"{line.prompt_tokens_per_second:.0f}",
            f"{line.resident_bytes / 1e6:.0f}",
            f"{line.load_seconds:.1f}",
            "" if line.same_texts is None else str(line.same_texts),
        )
    console.print(table)
    console.print(*sorted({line.version for line in lines}), sep=", ")
    for name, why in skipped.items():
        console.print(f"{name}: skipped: {why}")


if __name__ == "__main__":
    main()
