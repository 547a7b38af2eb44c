"""`eagle-run`: generate text from an artifact."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from eagle_aot.common.command import eagle_command, given_options
from eagle_aot.common.errors import SettingError
from eagle_aot.common.prompts import read_prompts
from eagle_aot.common.self_test import self_test_prompts
from eagle_aot.runtime_runner.adaptive.chain_length import AUTO, ChainLen
from eagle_aot.runtime_runner.plots.picture import check_plot
from eagle_aot.runtime_runner.stats import Stats

if TYPE_CHECKING:
    from eagle_aot.runtime_runner.runner import Result, Runner

BESIDE_VERIFY = {"verify", "as_json"}
BESIDE_SELF_TEST = {"self_test", "prompts_jsonl", "executor", "no_cuda_graph", "as_json"}


@eagle_command
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompt", metavar="TEXT", help="The prompt.")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="A file that is the prompt.")
@click.option("--prompts-jsonl", type=click.Path(path_type=Path),
              help='One {"prompt": "..."} or {"token_ids": [...]} per line.')  # fmt: skip
@click.option("--raw-prompt", is_flag=True, help="Do not wrap the prompt in the chat template.")
@click.option("--max-new-tokens", type=int, default=128, show_default=True, metavar="N")
@click.option("--chain-len", callback=lambda context, option, value: chain_length(value),
              metavar="K", help="Drafts per round, or auto; default: the artifact's.")  # fmt: skip
@click.option("--no-speculation", is_flag=True, help="Decode plainly, from the same artifact.")
@click.option("--executor", type=click.Choice(["auto", "aoti", "executorch"]), default="auto",
              show_default=True)  # fmt: skip
@click.option("--no-cuda-graph", is_flag=True, help="Launch every kernel of a round by itself.")
@click.option("--stop-id", type=int, multiple=True, metavar="ID", help="One more id to stop at.")
@click.option("--json", "as_json", is_flag=True,
              help="Print one JSON object per prompt, and one of all.")  # fmt: skip
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE.png",
              help="Draw what drafts were worth.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Print the text alone.")
@click.option("--self-test", is_flag=True,
              help="Compare drafts with what the export found, and outputs with plain decoding's, "
                   "on built-in prompts or those of --prompts-jsonl.")  # fmt: skip
@click.option("--verify", is_flag=True, help="Check the artifact, show its manifest; run nothing.")
def main(
    artifact: Path,
    prompt: str | None,
    prompt_file: Path | None,
    prompts_jsonl: Path | None,
    raw_prompt: bool,
    max_new_tokens: int,
    chain_len: ChainLen | None,
    no_speculation: bool,
    executor: str,
    no_cuda_graph: bool,
    stop_id: tuple[int, ...],
    as_json: bool,
    picture: Path | None,
    quiet: bool,
    self_test: bool,
    verify: bool,
) -> None:
    """Generate greedily from ARTIFACT, speculating with its draft head."""
    if verify:
        if others := given_options(but=BESIDE_VERIFY):
            raise click.UsageError(f"--verify runs nothing: leave out {others[0]}")
        show_verification(artifact, as_json)
        return
    if self_test:
        if others := given_options(but=BESIDE_SELF_TEST):
            raise click.UsageError(
                "--self-test goes with --prompts-jsonl, --executor, --no-cuda-graph and --json: "
                f"leave out {others[0]}"
            )
        show_self_test(artifact, prompts_jsonl, executor, not no_cuda_graph, as_json)
        return
    if picture is not None:
        check_plot(picture)
    if picture is not None and no_speculation:
        raise click.UsageError("--plot shows what drafts were worth: leave out --no-speculation")
    if sum(source is not None for source in (prompt, prompt_file, prompts_jsonl)) != 1:
        raise click.UsageError("give one of --prompt, --prompt-file and --prompts-jsonl")
    prompts = read_prompts(prompt, prompt_file, prompts_jsonl)
    from eagle_aot.runtime_runner.runner import load_artifact  # imports torch

    runner = load_artifact(artifact, executor, cuda_graphs=not no_cuda_graph)
    results = []
    for one in prompts:
        stream = None if as_json or not isinstance(one, str) else TextStream(runner)
        result = runner.generate(
            one,
            max_new_tokens,
            chain_len,
            not no_speculation,
            raw_prompt=raw_prompt,
            stop_ids=stop_id,
            on_tokens=stream or ignore,
        )
        results.append(result)
        if as_json:
            click.echo(json.dumps(result.to_json()))
        else:
            finish(result, stream, quiet)
    if prompts_jsonl is not None:
        summarise(results, as_json, quiet)
    if picture is not None:
        draw(results, artifact, picture)


def show_self_test(
    artifact: Path, prompts_jsonl: Path | None, executor: str, cuda_graphs: bool, as_json: bool
) -> None:
    """Print what was found, then raise what should not be."""
    from eagle_aot.artifact import Manifest
    from eagle_aot.runtime_runner.checks import self_test
    from eagle_aot.runtime_runner.runner import load_artifact

    prompts = self_test_prompts(prompts_jsonl)
    runner = load_artifact(artifact, executor, cuda_graphs=cuda_graphs)
    found = self_test.self_test(runner, Manifest.read(artifact), prompts)
    if as_json:
        click.echo(json.dumps(found.to_json(), allow_nan=False))
    else:
        self_test.show(found, Console(stderr=True))
    found.raise_warning()


def show_verification(artifact: Path, as_json: bool) -> None:
    """Print what was found, then raise what is wrong first."""
    from eagle_aot.runtime_runner.checks.integrity import report, verify_artifact

    found = verify_artifact(artifact)
    click.echo(json.dumps(found.to_json()) if as_json else "\n".join(report(found)))
    found.raise_first()


def chain_length(value: str | None) -> ChainLen | None:
    """What --chain-len says."""
    if value is None:
        return None
    try:
        return AUTO if value == AUTO else int(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither a whole number nor {AUTO}") from error


class TextStream:
    """Prints text as its tokens are decided, holding back half-decoded characters."""

    def __init__(self, runner: "Runner") -> None:
        self._decode: Callable[[list[int]], str] = runner.tokenizer.decode
        self._ids: list[int] = []
        self._shown = 0

    def __call__(self, run: list[int]) -> None:
        self._ids += run
        self.show(self._decode(self._ids).rstrip("\ufffd"))

    def show(self, text: str) -> None:
        """Print what `text` adds to what stands there."""
        click.echo(text[self._shown :], nl=False)
        self._shown = len(text)


def ignore(run: list[int]) -> None:
    """Do nothing with new tokens."""


def finish(result: "Result", stream: TextStream | None, quiet: bool) -> None:
    """End the text and show the statistics on stderr."""
    if stream and result.text is not None:
        stream.show(result.text)
        click.echo()
    else:
        click.echo(" ".join(map(str, result.token_ids)))
    if not quiet:
        Console(stderr=True).print(statistics(result))


def statistics(result: "Result") -> Table:
    """What the generation cost, as a table of two columns."""
    new_tokens = f"{len(result.token_ids)} (finish: {result.finish_reason})"
    return table_of(
        ("new tokens", new_tokens), *rows_of(result.stats), ("executor", result.executor)
    )


def summarise(results: Sequence["Result"], as_json: bool, quiet: bool) -> None:
    """All requests together: one more JSON object, or a table on stderr."""
    stats = total(results)
    prompt_tokens = sum(result.prompt_tokens for result in results)
    new_tokens = sum(len(result.token_ids) for result in results)
    if as_json:
        counts = {
            "requests": len(results),
            "prompt_tokens": prompt_tokens,
            "new_tokens": new_tokens,
        }
        click.echo(json.dumps({"summary": counts | stats.to_json()}))
    elif not quiet:
        heads = ("requests", str(len(results))), ("new tokens", str(new_tokens))
        Console(stderr=True).print("\nIn all", table_of(*heads, *rows_of(stats)), sep="\n")


def rows_of(stats: Stats) -> Iterator[tuple[str, str]]:
    """What a person wants to know of a generation, or of several."""
    speed, rate = stats.tokens_per_second, stats.acceptance_rate
    by_position = ", ".join(percent(a) for a in stats.acceptance_by_position)
    yield "target forwards", f"{stats.target_forwards} ({stats.prefill_chunks} for prompts)"
    yield "rounds", str(stats.rounds)
    if stats.chain_len == AUTO:
        yield "chain length", f"{AUTO}: {chosen(stats)}"
    yield "tau", "-" if stats.tau is None else f"{stats.tau:.2f} tokens per round"
    yield "drafts accepted", "-" if rate is None else f"{percent(rate)} of {stats.drafted}"
    yield "acceptance by position", by_position or "-"
    yield "decoding speed", "-" if speed is None else f"{speed:.0f} tokens/s"


def chosen(stats: Stats) -> str:
    """Which chain lengths were chosen, the most frequent first."""
    counts = sorted(((n, k) for k, n in enumerate(stats.rounds_by_chain_len) if n), reverse=True)
    return ", ".join(f"{k} in {n} rounds" for n, k in counts) or "-"


def percent(share: float) -> str:
    """Without decimals."""
    return f"{100 * share:.0f} %"


def table_of(*rows: tuple[str, str]) -> Table:
    """Names and values side by side."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows:
        table.add_row(f"[bold]{name}[/bold]", value)
    return table


def draw(results: Sequence["Result"], artifact: Path, picture: Path) -> None:
    """Write the picture; without a round there is nothing to show."""
    from eagle_aot.runtime_runner.plots.acceptance import plot_acceptance

    stats = total(results)
    if not stats.drafted:
        raise SettingError(f"--plot {picture}: nothing was drafted")
    requests = "1 request" if len(results) == 1 else f"{len(results)} requests"
    title = f"{artifact.name}, K = {stats.chain_len}, {requests}, {stats.rounds} rounds"
    plot_acceptance(stats, title, picture)


def total(results: Sequence["Result"]) -> Stats:
    """Of all requests."""
    return Stats.total([result.stats for result in results])
